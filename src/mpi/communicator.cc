// See communicator.h: the one file that includes mpi.h. Its C interface only, of MPI 3.
#include "mpi/communicator.h"

#include <mpi.h>

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "swiglu/tensors.hpp"

namespace swiglu::mpi {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;  // of one message: MPI counts in int

std::string text_of(int status) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(status, text, &length);
  return {text, static_cast<std::size_t>(length)};
}

void check(int status, const char* what) {
  if (status != MPI_SUCCESS) throw Error(ErrorCode::communication, fmt::format("{}: {}", what, text_of(status)));
}

}  // namespace

bool begin_mpi() {
  int running = 0;
  check(MPI_Initialized(&running), "MPI_Initialized");
  if (running != 0) return false;
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  return true;
}

void end_mpi() noexcept { MPI_Finalize(); }

void abort_mpi(int code) noexcept { MPI_Abort(MPI_COMM_WORLD, code); }

struct Communicator::Handle {
  MPI_Comm comm = MPI_COMM_NULL;
};

Communicator::Communicator(std::optional<int> parent) : handle_(std::make_unique<Handle>()) {
  const MPI_Comm from = parent ? MPI_Comm_f2c(static_cast<MPI_Fint>(*parent)) : MPI_COMM_WORLD;
  check(MPI_Comm_dup(from, &handle_->comm), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(handle_->comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(handle_->comm, &rank_);
  MPI_Comm_size(handle_->comm, &size_);
}

Communicator::~Communicator() {
  int ended = 0;
  MPI_Finalized(&ended);
  if (ended == 0 && handle_->comm != MPI_COMM_NULL) MPI_Comm_free(&handle_->comm);
}

bool Communicator::serialised() const {
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  return provided >= MPI_THREAD_SERIALIZED;
}

std::vector<int> Communicator::ranks_here() const {
  MPI_Comm here = MPI_COMM_NULL;
  check(MPI_Comm_split_type(handle_->comm, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &here), "MPI_Comm_split_type");
  int count = 0;
  MPI_Comm_size(here, &count);
  std::vector<int> ranks(static_cast<std::size_t>(count));
  const int status = MPI_Allgather(&rank_, 1, MPI_INT, ranks.data(), 1, MPI_INT, here);
  MPI_Comm_free(&here);
  check(status, "MPI_Allgather");
  return ranks;
}

struct Batch::Requests {
  struct About {
    int peer;
    int bytes;  // of a receive; else -1
  };
  std::vector<MPI_Request> list;
  std::vector<About> about;
  std::vector<int> indices;
  std::vector<MPI_Status> statuses;
  std::size_t open = 0;
};

Batch::Batch(const Communicator& communicator) : communicator_(communicator), requests_(std::make_unique<Requests>()) {}

Batch::~Batch() {
  int ended = 0;
  MPI_Finalized(&ended);
  if (ended != 0) return;
  for (std::size_t i = 0; i < requests_->list.size(); ++i) {
    MPI_Request& request = requests_->list[i];
    if (request == MPI_REQUEST_NULL) continue;
    int gone = 0;
    if (requests_->about[i].bytes >= 0) {
      MPI_Cancel(&request);
      MPI_Test(&request, &gone, MPI_STATUS_IGNORE);
    }
    if (gone == 0) MPI_Request_free(&request);  // waiting could take for ever
  }
}

void Batch::send(int peer, int tag, const void* data, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes || at == 0; at += kMostBytes) {
    const auto count = static_cast<int>(std::min(kMostBytes, bytes - at));
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Isend(static_cast<const std::byte*>(data) + at, count, MPI_BYTE, peer, tag, communicator_.handle_->comm,
                    &request),
          "MPI_Isend");
    requests_->list.push_back(request);
    requests_->about.push_back({peer, -1});
    ++requests_->open;
  }
}

void Batch::receive(int peer, int tag, void* data, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes || at == 0; at += kMostBytes) {
    const auto count = static_cast<int>(std::min(kMostBytes, bytes - at));
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Irecv(static_cast<std::byte*>(data) + at, count, MPI_BYTE, peer, tag, communicator_.handle_->comm,
                    &request),
          "MPI_Irecv");
    requests_->list.push_back(request);
    requests_->about.push_back({peer, count});
    ++requests_->open;
  }
}

bool Batch::done() {
  Requests& all = *requests_;
  if (all.open == 0) return true;
  all.indices.resize(all.list.size());
  all.statuses.resize(all.list.size());
  int count = 0;
  const int outcome =
      MPI_Testsome(static_cast<int>(all.list.size()), all.list.data(), &count, all.indices.data(), all.statuses.data());
  if (outcome != MPI_SUCCESS && outcome != MPI_ERR_IN_STATUS) check(outcome, "MPI_Testsome");
  for (int i = 0; i < count; ++i) {
    const auto [peer, bytes] = all.about[static_cast<std::size_t>(all.indices[static_cast<std::size_t>(i)])];
    const MPI_Status& status = all.statuses[static_cast<std::size_t>(i)];
    --all.open;
    int kind = MPI_SUCCESS;
    if (outcome == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS) MPI_Error_class(status.MPI_ERROR, &kind);
    int found = 0;
    if (kind == MPI_SUCCESS && bytes >= 0) MPI_Get_count(&status, MPI_BYTE, &found);
    if (kind == MPI_ERR_TRUNCATE || (kind == MPI_SUCCESS && bytes >= 0 && found != bytes)) {
      throw Error(ErrorCode::communication,
                  fmt::format("rank {}: expected {} bytes from rank {}, found {}: the ranks' calls differ",
                              communicator_.rank(), bytes, peer,
                              kind == MPI_ERR_TRUNCATE ? std::string("more") : fmt::format("{}", found)));
    }
    if (kind != MPI_SUCCESS) {
      throw Error(ErrorCode::communication,
                  fmt::format("rank {} and rank {}: {}", communicator_.rank(), peer, text_of(status.MPI_ERROR)));
    }
  }
  if (all.open > 0) return false;
  all.list.clear();
  all.about.clear();
  return true;
}

std::vector<int> Batch::awaited() const {
  std::vector<int> peers;
  for (std::size_t i = 0; i < requests_->list.size(); ++i) {
    if (requests_->list[i] != MPI_REQUEST_NULL) peers.push_back(requests_->about[i].peer);
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

}  // namespace swiglu::mpi
