// Checkpoints of the C ABI: opening, and what is in them.
#include "capi/handles.h"

using namespace swiglu;        // NOLINT(google-build-using-namespace): these are the names of C
using namespace swiglu::capi;  // NOLINT(google-build-using-namespace)

namespace {

template <class Text>
const char* text_at(const std::vector<Text>& texts, std::int64_t i) {
  return i < 0 || i >= std::ssize(texts) ? nullptr : texts[static_cast<std::size_t>(i)].c_str();
}

}  // namespace

swiglu_status swiglu_checkpoint_open(const char* path, const swiglu_open_options* options,
                                     swiglu_checkpoint** checkpoint) {
  if (checkpoint != nullptr) *checkpoint = nullptr;
  return guarded([&] {
    require(path, "swiglu_checkpoint_open: path");
    require(checkpoint, "swiglu_checkpoint_open: checkpoint");
    const swiglu_open_options taken_options = taken("swiglu_open_options", options);
    OpenOptions how;
    if (taken_options.eps != 0) how.eps = taken_options.eps;
    if (taken_options.hidden != 0) how.hidden = taken_options.hidden;
    how.map = taken_options.map != 0;
    how.collect_problems = taken_options.collect_problems != 0;
    *checkpoint = std::make_unique<swiglu_checkpoint>(Checkpoint::open(path, how)).release();
  });
}

void swiglu_checkpoint_free(swiglu_checkpoint* checkpoint) {
  const std::unique_ptr<swiglu_checkpoint> owned(checkpoint);
}

swiglu_status swiglu_checkpoint_get_info(const swiglu_checkpoint* checkpoint, swiglu_checkpoint_info* info) {
  return guarded([&] {
    require(checkpoint, "swiglu_checkpoint_get_info: checkpoint");
    const Checkpoint& model = checkpoint->model;
    swiglu_checkpoint_info ours{};
    ours.format = model.format().c_str();
    ours.family = model.family().c_str();
    ours.layers = model.layers();
    ours.dim = model.config().dim;
    ours.hidden = model.config().hidden;
    ours.eps = model.config().eps;
    ours.experts = model.experts();
    ours.shards = model.shards();
    ours.size_bytes = static_cast<std::int64_t>(model.size_bytes());
    ours.bytes_read = static_cast<std::int64_t>(model.bytes_read());
    ours.tensors = std::ssize(model.tensors());
    ours.notes = std::ssize(model.notes());
    ours.problems = std::ssize(model.problems());
    give("swiglu_checkpoint_info", ours, info);
  });
}

int64_t swiglu_checkpoint_layer_number(const swiglu_checkpoint* checkpoint, int64_t i) {
  if (checkpoint == nullptr) return -1;
  const auto& numbers = checkpoint->model.layer_numbers();
  return i < 0 || i >= std::ssize(numbers) ? -1 : numbers[static_cast<std::size_t>(i)];
}

const char* swiglu_checkpoint_note(const swiglu_checkpoint* checkpoint, int64_t i) {
  return checkpoint == nullptr ? nullptr : text_at(checkpoint->model.notes(), i);
}

const char* swiglu_checkpoint_problem(const swiglu_checkpoint* checkpoint, int64_t i) {
  return checkpoint == nullptr ? nullptr : text_at(checkpoint->model.problems(), i);
}

swiglu_status swiglu_checkpoint_tensor(const swiglu_checkpoint* checkpoint, int64_t i, swiglu_tensor_info* info) {
  return guarded([&] {
    require(checkpoint, "swiglu_checkpoint_tensor: checkpoint");
    const auto& tensors = checkpoint->model.tensors();
    if (i < 0 || i >= std::ssize(tensors)) {
      throw Error(ErrorCode::usage,
                  "swiglu_checkpoint_tensor: no tensor " + std::to_string(i) + " of " + std::to_string(tensors.size()));
    }
    const TensorInfo& tensor = tensors[static_cast<std::size_t>(i)];
    swiglu_tensor_info ours{};
    ours.name = tensor.name.c_str();
    ours.role = tensor.role.c_str();
    ours.dtype = tensor.dtype.c_str();
    ours.layer = tensor.layer;
    ours.expert = tensor.expert;
    ours.shape = tensor.shape.data();
    ours.dimensions = std::ssize(tensor.shape);
    give("swiglu_tensor_info", ours, info);
  });
}
