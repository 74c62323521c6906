// What the values of a pickle mean: calls of the allowed names, persistent ids of storages, and the
// state dict that comes out. Claims about tensors are checked for type and arity here; whether they fit
// their storages is the caller's question.
#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "files/pickle_machine.h"

namespace swiglu::files::pickle {

std::vector<Index> Machine::items(Index container) const {
  std::vector<Index> values;
  values.reserve(node(container).count);
  for (Index cell = node(container).first; cell != kNothing; cell = cells_[cell].next)
    values.push_back(cells_[cell].value);
  return values;
}

void Machine::call(Index callable, Index arguments) {
  const PickleGlobal& global = kPickleGlobals[node(callable).integer];
  const std::string name = fmt::format("{}.{}", global.module, global.name);
  const auto expect = [&](bool right, const char* what) {
    if (!right)
      fail(fmt::format("expected {} as the arguments of {}, found {} values", what, name, node(arguments).count));
  };
  const std::uint32_t count = node(arguments).count;
  if (global.role == PickleRole::opaque) return push({Kind::opaque});
  expect(count <= 8, "at most 8 values");
  const std::vector<Index> values = items(arguments);
  switch (global.role) {
    case PickleRole::dict: {
      expect(count == 0 || (count == 1 && node(values[0]).kind == Kind::list), "nothing or a list of pairs");
      const Index dict = make({Kind::ordered_dict});
      if (count == 1) {
        charge(node(values[0]).count);
        for (const Index pair : items(values[0])) {
          const bool is_pair = node(pair).kind == Kind::tuple || node(pair).kind == Kind::list;
          if (!is_pair || node(pair).count != 2) fail(fmt::format("expected pairs as the items of {}", name));
          for (const Index value : items(pair)) append(dict, value);
        }
      }
      return push(dict);
    }
    case PickleRole::size:
      expect(count == 1 && node(values[0]).kind == Kind::tuple, "a tuple");
      return push(values[0]);
    case PickleRole::parameter:
    case PickleRole::parameter_with_state:
      expect(count == (global.role == PickleRole::parameter ? 3U : 4U) && node(values[0]).kind == Kind::tensor,
             "a tensor, a boolean and hooks");
      return push(values[0]);
    case PickleRole::tensor:
      expect(count == 4, "4 values");
      break;
    case PickleRole::tensor_v2:
      expect(count == 6 || count == 7, "6 or 7 values");
      break;
    case PickleRole::tensor_v3:
      expect(count == 7 || count == 8, "7 or 8 values");
      break;
    default:
      fail(fmt::format("refuses to call {}", name), ErrorCode::unsupported);
  }
  check_tensor(values, global.role);
  push({Kind::tensor, 0, arguments, callable});
}

// After this, tensor() needs no checks: the arguments are immutable.
void Machine::check_tensor(const std::vector<Index>& arguments, PickleRole role) {
  const auto expect = [&](Index i, Kind kind, const char* what) {
    if (node(i).kind != kind) {
      fail(
          fmt::format("expected {} as a tensor's {}, found {}", kKindNames[static_cast<int>(kind)], what, describe(i)));
    }
  };
  expect(arguments[0], Kind::storage, "storage");
  expect(arguments[1], Kind::integer, "offset");
  for (const std::size_t i : {std::size_t{2}, std::size_t{3}}) {
    const char* what = i == 2 ? "sizes" : "strides";
    expect(arguments[i], Kind::tuple, what);
    if (node(arguments[i]).count > kMaxDimensions) {
      fail(fmt::format("expected at most {} dimensions, found {}", kMaxDimensions, node(arguments[i]).count),
           ErrorCode::unsupported);
    }
    for (const Index value : items(arguments[i])) expect(value, Kind::integer, what);
  }
  if (node(arguments[2]).count != node(arguments[3]).count) {
    fail(fmt::format("expected as many strides as sizes of a tensor, found {} and {}", node(arguments[3]).count,
                     node(arguments[2]).count));
  }
  if (role == PickleRole::tensor_v3) {
    expect(arguments[6], Kind::global, "element type");
    const PickleGlobal& type = kPickleGlobals[node(arguments[6]).integer];
    if (type.role != PickleRole::type)
      fail(fmt::format("expected an element type, found {}.{}", type.module, type.name));
    const TorchType& stored = *state_.storages[static_cast<std::size_t>(node(arguments[0]).integer)].type;
    if (stored.name != kUntyped.name)
      fail(fmt::format("expected untyped bytes under a typed tensor, found {}", stored.name));
  }
  // The metadata marks tensors whose values are negated or conjugated when read: not what the bytes say.
  const std::size_t metadata = role == PickleRole::tensor_v3 ? 7 : 6;
  if (arguments.size() <= metadata || node(arguments[metadata]).kind == Kind::none) return;
  if (node(arguments[metadata]).kind != Kind::dict || node(arguments[metadata]).count > 0) {
    fail("refuses a tensor with metadata (a negated or conjugated view)", ErrorCode::unsupported);
  }
}

std::string_view Machine::storage_key(Index i) const {
  const std::string_view key = text(i);
  if (key.empty() || key.size() > 20 || key.find_first_not_of("0123456789") != key.npos) {
    fail(fmt::format("expected a decimal storage key, found '{}'", escaped(key)));
  }
  return key;
}

// The index of a storage that is new or the same as before.
std::size_t Machine::add_storage(PickledStorage storage) {
  const auto [known, is_new] = storage_of_key_.try_emplace(storage.key, state_.storages.size());
  if (is_new) {
    if (state_.storages.size() >= kMaxTensors)
      fail(fmt::format("refuses more than {} storages", kMaxTensors), ErrorCode::unsupported);
    state_.storages.push_back(std::move(storage));
    return known->second;
  }
  const PickledStorage& before = state_.storages[known->second];
  if (before.type->name != storage.type->name || before.elements != storage.elements) {
    fail(fmt::format("storage {}: expected {} elements of {} as before, found {} of {}", storage.key, before.elements,
                     before.type->name, storage.elements, storage.type->name));
  }
  if (before.window != storage.window)
    fail(fmt::format("storage {}: expected the same place in the same storage as before, found another", storage.key));
  return known->second;
}

void Machine::push_storage(Index id) {
  const bool plain = form_ == PickleForm::plain;
  const std::string expected =
      fmt::format("('storage', class, key, location, number of elements{}) as a persistent id", plain ? ", view" : "");
  if (node(id).kind != Kind::tuple || node(id).count != (plain ? 6 : 5)) {
    fail(fmt::format("expected {}, found {} of {}", expected, describe(id), node(id).count));
  }
  const std::vector<Index> parts = items(id);
  constexpr Kind kKinds[] = {Kind::string, Kind::global, Kind::string, Kind::string, Kind::integer};
  for (std::size_t i = 0; i < std::size(kKinds); ++i) {
    if (node(parts[i]).kind != kKinds[i]) fail(fmt::format("expected {}, found {}", expected, describe(parts[i])));
  }
  if (text(parts[0]) != "storage") fail(fmt::format("expected {}, found '{}'", expected, escaped(text(parts[0]))));
  const PickleGlobal& type = kPickleGlobals[node(parts[1]).integer];
  if (type.role != PickleRole::bytes && (type.role != PickleRole::type || !type.name.ends_with("Storage"))) {
    fail(fmt::format("expected a storage class with an element type, found {}.{}", type.module, type.name));
  }
  const std::string_view key = storage_key(parts[2]);
  if (text(parts[3]) == "meta") {
    fail(fmt::format("storage {}: lies on the 'meta' device: it has no data", key), ErrorCode::unsupported);
  }
  const std::int64_t elements = node(parts[4]).integer;
  if (elements < 0) fail(fmt::format("storage {}: expected a number of elements, found {}", key, elements));
  std::size_t storage = add_storage({std::string(key), &type.type, elements});
  if (plain && node(parts[5]).kind != Kind::none) storage = add_window(storage, parts[5]);
  push({Kind::storage, 0, static_cast<std::int64_t>(storage)});
}

std::size_t Machine::add_window(std::size_t root, Index view) {
  const PickledStorage& whole = state_.storages[root];
  const std::vector<Index> parts = node(view).kind == Kind::tuple ? items(view) : std::vector<Index>{};
  if (parts.size() != 3 || node(parts[0]).kind != Kind::string || node(parts[1]).kind != Kind::integer ||
      node(parts[2]).kind != Kind::integer) {
    fail(fmt::format("storage {}: expected (key, offset, number of elements) or None as its view, found {} of {}",
                     whole.key, describe(view), node(view).count));
  }
  const std::int64_t begin = node(parts[1]).integer;
  const std::int64_t elements = node(parts[2]).integer;
  if (begin < 0 || elements < 0 || begin > whole.elements || elements > whole.elements - begin) {
    fail(fmt::format("storage {}: expected a view inside its {} elements, found {} elements from {} on", whole.key,
                     whole.elements, elements, begin));
  }
  if (whole.window) fail(fmt::format("storage {}: expected a storage with a view, found a view of another", whole.key));
  return add_storage({std::string(storage_key(parts[0])), whole.type, elements, StorageWindow{root, begin}});
}

bool Machine::holds_tensors(Index dict) const {
  bool is_value = false;
  for (Index cell = node(dict).first; cell != kNothing; cell = cells_[cell].next, is_value = !is_value) {
    if (is_value && node(cells_[cell].value).kind == Kind::tensor) return true;
  }
  return false;
}

PickledTensor Machine::tensor(Index i) const {
  const std::vector<Index> arguments = items(static_cast<Index>(node(i).integer));
  PickledTensor tensor{
      static_cast<std::size_t>(node(arguments[0]).integer), nullptr, node(arguments[1]).integer, {}, {}};
  const bool typed = kPickleGlobals[node(node(i).first).integer].role == PickleRole::tensor_v3;
  tensor.type = typed ? &kPickleGlobals[node(arguments[6]).integer].type : state_.storages[tensor.storage].type;
  for (const Index size : items(arguments[2])) tensor.sizes.push_back(node(size).integer);
  for (const Index stride : items(arguments[3])) tensor.strides.push_back(node(stride).integer);
  return tensor;
}

void Machine::collect_tensor(std::string_view name, Index value) {
  if (state_.tensors.size() >= kMaxTensors)
    fail(fmt::format("refuses more than {} tensors", kMaxTensors), ErrorCode::unsupported);
  if (!state_.tensors.try_emplace(std::string(name), tensor(value)).second) {
    fail(fmt::format("expected each name once, found '{}' twice", escaped(name)));
  }
}

// The root dict, or the dict of tensors it wraps, becomes the table.
PickledState Machine::collect(Index root) {
  const auto is_dict = [&](Index i) { return node(i).kind == Kind::dict || node(i).kind == Kind::ordered_dict; };
  if (node(root).kind == Kind::tensor) {
    collect_tensor(kBareTensor, root);
    return std::move(state_);
  }
  if (!is_dict(root))
    fail(fmt::format("expected a dict of tensors (a state dict) at the root, found {}", describe(root)));
  Index dict = root;
  const std::vector<Index> entries = items(root);
  for (const std::string_view wrapper : {"model", "state_dict", "model_state_dict", "module"}) {
    for (std::size_t i = 0; i < entries.size() && dict == root; i += 2) {
      if (node(entries[i]).kind != Kind::string || text(entries[i]) != wrapper) continue;
      if (is_dict(entries[i + 1]) && holds_tensors(entries[i + 1])) dict = entries[i + 1];
      break;  // one look at most: a name that repeats must not cost a walk each time
    }
  }
  const std::vector<Index> pairs = items(dict);
  std::vector<std::string_view> names;  // sorted, not hashed: no names can be chosen to collide
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    if (node(pairs[i]).kind == Kind::string) names.push_back(text(pairs[i]));
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) fail(fmt::format("expected each name once, found '{}' twice", escaped(*twice)));
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    // No tensor we want is called by anything but a string.
    if (node(pairs[i]).kind != Kind::string || node(pairs[i + 1]).kind != Kind::tensor) continue;
    std::string_view name = text(pairs[i]);
    for (bool stripped = true; stripped;) {
      stripped = false;
      for (const std::string_view prefix : {"module.", "_orig_mod."}) {
        if (!name.starts_with(prefix)) continue;
        name.remove_prefix(prefix.size());
        stripped = true;
      }
    }
    collect_tensor(name, pairs[i + 1]);
  }
  return std::move(state_);
}

}  // namespace swiglu::files::pickle
