// The allow-list of the pickle machine: the global names a state dict may mention, and what each means.
// Names are compared, never imported, resolved or called.
#pragma once

#include <cstdint>
#include <string_view>

#include "files/pickle.h"

namespace swiglu::files {

enum class PickleRole : std::uint8_t {
  type,    // a storage class or a dtype: never called
  bytes,   // the storage class without element type
  tensor,  // _rebuild_tensor and its successors
  tensor_v2,
  tensor_v3,
  parameter,
  parameter_with_state,
  dict,
  size,
  opaque,  // may be called, yields a value that fits nowhere
};

struct PickleGlobal {
  std::string_view module, name;
  PickleRole role;
  TorchType type{};
};

inline constexpr TorchType kUntyped{"torch.UntypedStorage", 1, {}};

// The allow-list. What is not here is refused, called or not.
inline constexpr PickleGlobal kPickleGlobals[] = {
    {"collections", "OrderedDict", PickleRole::dict},
    {"torch._utils", "_rebuild_tensor", PickleRole::tensor},
    {"torch._utils", "_rebuild_tensor_v2", PickleRole::tensor_v2},
    {"torch._utils", "_rebuild_tensor_v3", PickleRole::tensor_v3},
    {"torch._utils", "_rebuild_parameter", PickleRole::parameter},
    {"torch._utils", "_rebuild_parameter_with_state", PickleRole::parameter_with_state},
    {"torch", "FloatStorage", PickleRole::type, {"torch.FloatStorage", 4, DType::f32}},
    {"torch", "DoubleStorage", PickleRole::type, {"torch.DoubleStorage", 8, DType::f64}},
    {"torch", "HalfStorage", PickleRole::type, {"torch.HalfStorage", 2, DType::f16}},
    {"torch", "BFloat16Storage", PickleRole::type, {"torch.BFloat16Storage", 2, DType::bf16}},
    {"torch", "LongStorage", PickleRole::type, {"torch.LongStorage", 8, {}}},
    {"torch", "IntStorage", PickleRole::type, {"torch.IntStorage", 4, {}}},
    {"torch", "ShortStorage", PickleRole::type, {"torch.ShortStorage", 2, {}}},
    {"torch", "CharStorage", PickleRole::type, {"torch.CharStorage", 1, {}}},
    {"torch", "ByteStorage", PickleRole::type, {"torch.ByteStorage", 1, {}}},
    {"torch", "BoolStorage", PickleRole::type, {"torch.BoolStorage", 1, {}}},
    {"torch.storage", "UntypedStorage", PickleRole::bytes, kUntyped},
    {"torch.storage", "_UntypedStorage", PickleRole::bytes, kUntyped},
    {"torch", "float32", PickleRole::type, {"torch.float32", 4, DType::f32}},
    {"torch", "float64", PickleRole::type, {"torch.float64", 8, DType::f64}},
    {"torch", "float16", PickleRole::type, {"torch.float16", 2, DType::f16}},
    {"torch", "bfloat16", PickleRole::type, {"torch.bfloat16", 2, DType::bf16}},
    {"torch", "float8_e4m3fn", PickleRole::type, {"torch.float8_e4m3fn", 1, {}, "F8_E4M3"}},
    {"torch", "float8_e5m2", PickleRole::type, {"torch.float8_e5m2", 1, {}, "F8_E5M2"}},
    {"torch", "float8_e4m3fnuz", PickleRole::type, {"torch.float8_e4m3fnuz", 1, {}}},
    {"torch", "float8_e5m2fnuz", PickleRole::type, {"torch.float8_e5m2fnuz", 1, {}}},
    {"torch", "float8_e8m0fnu", PickleRole::type, {"torch.float8_e8m0fnu", 1, {}}},
    {"torch", "int8", PickleRole::type, {"torch.int8", 1, {}}},
    {"torch", "uint8", PickleRole::type, {"torch.uint8", 1, {}}},
    {"torch", "int16", PickleRole::type, {"torch.int16", 2, {}}},
    {"torch", "uint16", PickleRole::type, {"torch.uint16", 2, {}}},
    {"torch", "int32", PickleRole::type, {"torch.int32", 4, {}}},
    {"torch", "uint32", PickleRole::type, {"torch.uint32", 4, {}}},
    {"torch", "int64", PickleRole::type, {"torch.int64", 8, {}}},
    {"torch", "uint64", PickleRole::type, {"torch.uint64", 8, {}}},
    {"torch", "bool", PickleRole::type, {"torch.bool", 1, {}}},
    {"torch", "Size", PickleRole::size},
    {"torch", "device", PickleRole::opaque},
    {"torch.storage", "TypedStorage", PickleRole::opaque},
    {"torch.storage", "_TypedStorage", PickleRole::opaque},
    {"torch.serialization", "_get_layout", PickleRole::opaque},
    {"torch.nn.parameter", "Parameter", PickleRole::opaque},
    {"builtins", "set", PickleRole::opaque},
    {"_codecs", "encode", PickleRole::opaque},
};

/// Null for a name that is not on the list. "__builtin__" is Python 2's name of "builtins".
[[nodiscard]] constexpr const PickleGlobal* find_pickle_global(std::string_view module,
                                                               std::string_view name) noexcept {
  if (module == "__builtin__") module = "builtins";
  for (const PickleGlobal& global : kPickleGlobals) {
    if (global.module == module && global.name == name) return &global;
  }
  return nullptr;
}

}  // namespace swiglu::files
