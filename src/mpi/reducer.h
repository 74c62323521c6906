// The Reducer over MPI: carries out a schedule step by step. Knows messages and schedules; no layers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "mpi/communicator.h"
#include "mpi/schedule.h"
#include "mpi/wait.h"
#include "swiglu/mpi.hpp"

namespace swiglu::mpi {

class MpiReducer final : public RankReducer {
 public:
  /// `communicator`, used by nobody else meanwhile, and `watch` outlive the reducer.
  MpiReducer(const Options& options, const Communicator& communicator, Watch& watch);
  ~MpiReducer() override;
  [[nodiscard]] int rank() const noexcept override { return communicator_.rank(); }
  [[nodiscard]] int size() const noexcept override { return communicator_.size(); }
  void start(std::span<const PartialSum> parts, std::int64_t n, float* root, AddFloats add) override;
  void finish() override;
  [[nodiscard]] Traffic traffic() const noexcept override { return traffic_; }
  /// A reduction was started and has not been finished.
  [[nodiscard]] bool under_way() const noexcept { return under_way_; }

 private:
  bool advance();  ///< as far as it goes without waiting; true when the root is complete
  void post(const Step& step);
  void complete(const Step& step);
  void work();  ///< the thread of Overlap::thread

  const Options options_;
  Watch& watch_;
  const Communicator& communicator_;
  Batch batch_;
  AddFloats add_ = nullptr;
  std::vector<Step> steps_;
  std::size_t step_ = 0;
  bool posted_ = false;
  bool under_way_ = false;
  struct Memory {
    std::vector<float> extra;
    std::vector<std::uint16_t> narrow;  ///< what a bf16 wire sends and receives, one after another
  };
  std::unique_ptr<Memory> memory_ = std::make_unique<Memory>();
  Traffic traffic_;

  // Of Overlap::thread; mutex_ guards all above while a reduction is under way.
  std::mutex mutex_;
  std::condition_variable wake_;
  bool moving_ = false;  ///< the thread has something to move on
  bool ending_ = false;
  std::exception_ptr fault_;
  std::thread thread_;
};

}  // namespace swiglu::mpi
