// What the opaque handles of the C ABI are.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capi/guard.h"

struct swiglu_pool {
  std::shared_ptr<swiglu::ThreadPool> pool;
};

struct swiglu_checkpoint {
  explicit swiglu_checkpoint(swiglu::Checkpoint opened) : model(std::move(opened)) {}
  swiglu::Checkpoint model;
};

struct swiglu_layer {
  std::shared_ptr<swiglu::ThreadPool> pool;  ///< before the layer, which uses it
  std::optional<swiglu::FeedForward> layer;
  bool has_norm = false;
};
