// The pickle machine: its values, its stack and its limits. pickle.cc says what the opcodes do to them,
// pickle_state.cc what calls and persistent ids mean and which tensors the result names.
// Values are indices into an arena (nodes, and cells that chain what containers hold), so sharing costs
// nothing, nesting needs no recursion and cycles need no care: nothing is ever walked but the root dict,
// the dict it may wrap, and the short argument tuples of tensors.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "files/pickle.h"
#include "files/pickle_globals.h"

namespace swiglu::files::pickle {

// A tensor takes about 35 opcodes and 20 values, so that kMaxTensors is the limit that a checkpoint would meet first;
// small enough for memory and time.
inline constexpr std::uint64_t kMaxSteps = std::uint64_t{1} << 23;
inline constexpr std::size_t kMaxNodes = std::size_t{1} << 22;
inline constexpr std::size_t kMaxMarks = 1024;
inline constexpr std::size_t kMaxTensors = std::size_t{1} << 17;
inline constexpr std::size_t kMaxDimensions = 16;

enum class Kind : std::uint8_t {
  none,
  boolean,
  integer,
  big_integer,
  real,
  string,
  bytes,
  tuple,
  list,
  dict,
  ordered_dict,
  global,
  storage,
  tensor,
  opaque
};
inline constexpr const char* kKindNames[] = {
    "None",   "a boolean", "an integer",     "a huge integer", "a float",   "a string", "bytes",    "a tuple",
    "a list", "a dict",    "an OrderedDict", "a global name",  "a storage", "a tensor", "an object"};

using Index = std::uint32_t;
inline constexpr Index kNothing = std::numeric_limits<Index>::max();

struct Node {
  Kind kind = Kind::none;
  std::uint32_t count = 0;   // items of a container (a dict: keys and values); bytes of a string or a huge integer
  std::int64_t integer =
      0;  // the value; where a string or a huge integer begins; a global's or storage's index; a tensor's arguments
  Index first = kNothing;    // cells of a container; a tensor's global
  Index last = kNothing;
};
struct Cell {
  Index value;
  Index next;
};

class Machine {
 public:
  /// The pickle that begins at `position`.
  Machine(std::string_view bytes, std::size_t position, PickleForm form, const std::string& where)
      : bytes_(bytes), where_(where), form_(form), position_(position) {}

  /// Runs to the opcode STOP; the value that is left.
  Index run() {
    for (;;) {
      at_ = position_;
      if (position_ == bytes_.size()) fail("expected the opcode STOP, found the end of the pickle");
      const auto opcode = static_cast<unsigned char>(take(1)[0]);
      charge(1);
      if (opcode == '.') break;
      step(opcode);
    }
    if (stack_.size() != 1 || !marks_.empty()) {
      fail(fmt::format("expected one value when the pickle stops, found {}", stack_.size()));
    }
    return stack_.front();
  }
  /// Behind the last opcode.
  [[nodiscard]] std::size_t position() const { return position_; }
  /// The tensors of the root dict, or of the dict it wraps.
  [[nodiscard]] PickledState collect(Index root);

  [[nodiscard]] const Node& node(Index i) const { return nodes_[i]; }
  [[nodiscard]] std::string describe(Index i) const { return kKindNames[static_cast<int>(node(i).kind)]; }
  [[nodiscard]] std::string_view text(Index i) const {
    return bytes_.substr(static_cast<std::size_t>(node(i).integer), node(i).count);
  }
  [[nodiscard]] std::vector<Index> items(Index container) const;
  [[noreturn]] void fail(const std::string& text, ErrorCode code = ErrorCode::format) const {
    throw Error(code, fmt::format("{}: {} byte {}: {}", where_, form_ == PickleForm::zip ? "data.pkl" : "pickle at",
                                  at_, text));
  }

 private:
  void charge(std::uint64_t steps) {
    steps_ += steps;
    if (steps_ > kMaxSteps)
      fail(fmt::format("refuses a pickle of more than {} steps", kMaxSteps), ErrorCode::unsupported);
  }

  // --- bytes
  std::string_view take(std::uint64_t count) {
    const std::uint64_t left = bytes_.size() - position_;
    if (count > left) fail(fmt::format("expected {} more bytes, found {}", count, left));
    const std::string_view piece = bytes_.substr(position_, count);
    position_ += count;
    return piece;
  }
  std::uint64_t unsigned_of(int size) {
    const std::string_view raw = take(static_cast<std::uint64_t>(size));
    std::uint64_t value = 0;
    for (std::size_t i = raw.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(raw[i]);
    return value;
  }
  std::uint64_t length_i32() {
    const auto length = static_cast<std::int32_t>(unsigned_of(4));
    if (length < 0) fail(fmt::format("expected a length, found {}", length));
    return static_cast<std::uint64_t>(length);
  }
  std::string_view line() {
    const std::size_t end = bytes_.find('\n', position_);
    if (end == bytes_.npos) fail("expected a line of text, found the end of the pickle");
    const std::string_view text = take(end - position_);
    take(1);
    return text;
  }

  // --- values
  Index make(Node value) {
    if (nodes_.size() >= kMaxNodes)
      fail(fmt::format("refuses a pickle of more than {} values", kMaxNodes), ErrorCode::unsupported);
    nodes_.push_back(value);
    return static_cast<Index>(nodes_.size() - 1);
  }
  void push(Index i) { stack_.push_back(i); }
  void push(Node value) { push(make(value)); }
  void push_text(Kind kind, std::uint64_t length) {
    const auto start = static_cast<std::int64_t>(position_);
    take(length);
    push({kind, static_cast<std::uint32_t>(length), start});
  }
  void push_integer(std::int64_t value) { push({Kind::integer, 0, value}); }
  [[nodiscard]] std::size_t fence() const { return marks_.empty() ? 0 : marks_.back(); }
  Index top() const {
    if (stack_.size() <= fence()) fail("expected a value on the stack, found none");
    return stack_.back();
  }
  Index pop() {
    const Index i = top();
    stack_.pop_back();
    return i;
  }
  Index pop(Kind kind, const char* purpose) {
    const Index i = pop();
    if (node(i).kind != kind) {
      fail(fmt::format("expected {} as {}, found {}", kKindNames[static_cast<int>(kind)], purpose, describe(i)));
    }
    return i;
  }
  std::size_t pop_mark() {
    if (marks_.empty()) fail("expected a MARK on the stack, found none");
    const std::size_t start = marks_.back();
    marks_.pop_back();
    return start;
  }
  void append(Index container, Index value) {
    const auto cell = static_cast<Index>(cells_.size());
    cells_.push_back({value, kNothing});
    Node& to = nodes_[container];
    (to.last == kNothing ? to.first : cells_[to.last].next) = cell;
    to.last = cell;
    ++to.count;
  }
  // Where the last `count` values of the stack begin; something must lie below them.
  [[nodiscard]] std::size_t last_items(std::size_t count) const {
    if (stack_.size() - fence() <= count) {
      fail(fmt::format("expected {} values on the stack, found {}", count + 1, stack_.size() - fence()));
    }
    return stack_.size() - count;
  }
  // The stack from `start` on becomes (part of) a container.
  void move_items(Index container, std::size_t start) {
    for (std::size_t i = start; i < stack_.size(); ++i) append(container, stack_[i]);
    stack_.resize(start);
  }
  void push_container(Kind kind, std::size_t start) {
    const Index container = make({kind});
    move_items(container, start);
    push(container);
  }
  void fill_dict(std::size_t start) {
    if ((stack_.size() - start) % 2 != 0) fail("expected pairs of keys and values, found an odd number of items");
    if (start <= fence()) fail("expected a dict below the items, found nothing");
    const Index target = stack_[start - 1];
    if (node(target).kind != Kind::dict && node(target).kind != Kind::ordered_dict) {
      fail(fmt::format("expected a dict to set items in, found {}", describe(target)));
    }
    move_items(target, start);
  }
  void fill_list(std::size_t start) {
    if (start <= fence()) fail("expected a list below the items, found nothing");
    const Index target = stack_[start - 1];
    if (node(target).kind != Kind::list) fail(fmt::format("expected a list to append to, found {}", describe(target)));
    move_items(target, start);
  }
  void memorise(std::uint64_t key) {
    if (key >= kMaxSteps) fail(fmt::format("refuses the memo index {}", key), ErrorCode::unsupported);
    if (key >= memo_.size()) memo_.resize(key + 1, kNothing);
    if (memo_[key] == kNothing) ++memo_count_;
    memo_[key] = top();
  }
  void recall(std::uint64_t key) {
    if (key >= memo_.size() || memo_[key] == kNothing)
      fail(fmt::format("expected memo {} to be set, found it unset", key));
    push(memo_[key]);
  }

  void step(unsigned char opcode);
  void push_long(std::string_view raw);
  void push_decimal(std::string_view digits);
  void push_global(std::string_view module, std::string_view name);
  void call(Index callable, Index arguments);
  void check_tensor(const std::vector<Index>& arguments, PickleRole role);
  void push_storage(Index id);
  [[nodiscard]] std::string_view storage_key(Index i) const;
  [[nodiscard]] std::size_t add_storage(PickledStorage storage);
  [[nodiscard]] std::size_t add_window(std::size_t root, Index view);
  void collect_tensor(std::string_view name, Index value);
  [[nodiscard]] bool holds_tensors(Index dict) const;
  [[nodiscard]] PickledTensor tensor(Index i) const;

  std::string_view bytes_;
  const std::string& where_;
  PickleForm form_;
  std::size_t position_;
  std::size_t at_ = 0;  // where the current opcode stands
  std::uint64_t steps_ = 0;
  std::vector<Node> nodes_;
  std::vector<Cell> cells_;
  std::vector<Index> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Index> memo_;
  std::uint64_t memo_count_ = 0;
  std::map<std::string, std::size_t, std::less<>> storage_of_key_;  // ordered: no keys can be chosen to collide
  PickledState state_;
};

}  // namespace swiglu::files::pickle
