// What each pickle opcode does; see pickle_machine.h. Lengths are compared with the bytes that are left
// before anything is taken, and whatever is not on a list is refused by name.
#include "files/pickle.h"

#include <charconv>

#include <fmt/format.h>

#include "base/text.h"
#include "files/pickle_machine.h"

namespace swiglu::files {
namespace pickle {
namespace {

// Opcodes that are refused, by name: they build objects, name code or belong to the text protocol.
const char* refused_opcode(unsigned char opcode) {
  switch (opcode) {
    case 'i':
      return "INST";
    case 'o':
      return "OBJ";
    case 0x82:
      return "EXT1";
    case 0x83:
      return "EXT2";
    case 0x84:
      return "EXT4";
    case 0x8f:
      return "EMPTY_SET";
    case 0x90:
      return "ADDITEMS";
    case 0x91:
      return "FROZENSET";
    case 0x92:
      return "NEWOBJ_EX";
    case 0x97:
      return "NEXT_BUFFER";
    case 0x98:
      return "READONLY_BUFFER";
    default:
      return nullptr;
  }
}

}  // namespace

void Machine::step(unsigned char opcode) {
  switch (opcode) {
    case 0x80: {  // PROTO
      const std::uint64_t version = unsigned_of(1);
      if (version > 5) fail(fmt::format("expected pickle protocol 1 to 5, found {}", version), ErrorCode::unsupported);
      return;
    }
    case 0x95: {  // FRAME: a hint for buffering, nothing more
      const std::uint64_t length = unsigned_of(8);
      const std::uint64_t left = bytes_.size() - position_;
      if (length > left) fail(fmt::format("expected a frame of at most {} bytes, found {}", left, length));
      return;
    }
    case '(':
      if (marks_.size() >= kMaxMarks) fail("refuses deeper nesting of marks", ErrorCode::unsupported);
      return marks_.push_back(stack_.size());
    case '0':
      if (!marks_.empty() && stack_.size() == fence()) return marks_.pop_back();
      return static_cast<void>(pop());
    case '1':
      return stack_.resize(pop_mark());
    case '2':
      return push(top());

    case 'N':
      return push(Node{});
    case 0x88:
      return push({Kind::boolean, 0, 1});
    case 0x89:
      return push({Kind::boolean, 0, 0});
    case 'K':
      return push_integer(static_cast<std::int64_t>(unsigned_of(1)));
    case 'M':
      return push_integer(static_cast<std::int64_t>(unsigned_of(2)));
    case 'J':
      return push_integer(static_cast<std::int32_t>(unsigned_of(4)));
    case 0x8a:
      return push_long(take(unsigned_of(1)));
    case 0x8b:
      return push_long(take(length_i32()));
    case 'I': {
      const std::string_view digits = line();
      if (digits == "00" || digits == "01") return push({Kind::boolean, 0, digits == "01"});
      return push_decimal(digits);
    }
    case 'L': {
      const std::string_view digits = line();
      return push_decimal(digits.substr(0, digits.size() - (digits.ends_with('L') ? 1 : 0)));
    }
    case 'G':
      take(8);
      return push({Kind::real});
    case 'X':
    case 'T':
      return push_text(Kind::string, opcode == 'T' ? length_i32() : unsigned_of(4));
    case 0x8c:
    case 'U':
      return push_text(Kind::string, unsigned_of(1));
    case 0x8d:
      return push_text(Kind::string, unsigned_of(8));
    case 'C':
      return push_text(Kind::bytes, unsigned_of(1));
    case 'B':
      return push_text(Kind::bytes, unsigned_of(4));
    case 0x8e:
    case 0x96:
      return push_text(Kind::bytes, unsigned_of(8));

    case ')':
      return push_container(Kind::tuple, stack_.size());
    case 0x85:
    case 0x86:
    case 0x87: {
      const std::size_t count = opcode - 0x84U;
      if (stack_.size() - fence() < count) {
        fail(fmt::format("expected {} values on the stack, found {}", count, stack_.size() - fence()));
      }
      return push_container(Kind::tuple, stack_.size() - count);
    }
    case 't':
      return push_container(Kind::tuple, pop_mark());
    case ']':
      return push_container(Kind::list, stack_.size());
    case 'l':
      return push_container(Kind::list, pop_mark());
    case '}':
      return push_container(Kind::dict, stack_.size());
    case 'd': {
      const std::size_t start = pop_mark();
      if ((stack_.size() - start) % 2 != 0) fail("expected pairs of keys and values, found an odd number of items");
      return push_container(Kind::dict, start);
    }
    case 'a':
    case 'e':
      return fill_list(opcode == 'e' ? pop_mark() : last_items(1));
    case 's':
    case 'u':
      return fill_dict(opcode == 'u' ? pop_mark() : last_items(2));

    case 'q':
      return memorise(unsigned_of(1));
    case 'r':
      return memorise(unsigned_of(4));
    case 0x94:
      return memorise(memo_count_);
    case 'h':
      return recall(unsigned_of(1));
    case 'j':
      return recall(unsigned_of(4));

    case 'c': {
      const std::string_view module = line();
      return push_global(module, line());
    }
    case 0x93: {
      const Index name = pop(Kind::string, "a global's name");
      return push_global(text(pop(Kind::string, "a global's module")), text(name));
    }
    case 'R':
    case 0x81: {  // REDUCE, NEWOBJ
      const Index arguments = pop(Kind::tuple, "the arguments of a call");
      return call(pop(Kind::global, "what is called"), arguments);
    }
    case 'b': {  // BUILD: the attributes of an OrderedDict (its _metadata) mean nothing to us
      pop();
      const Kind kind = node(top()).kind;
      if (kind == Kind::ordered_dict || kind == Kind::opaque) return;
      fail(fmt::format("refuses to set the state of {}", describe(top())), ErrorCode::unsupported);
    }
    case 'Q':
      return push_storage(pop());

    case 'p':
    case 'g':
    case 'V':
    case 'S':
    case 'F':
    case 'P':
      fail(fmt::format(
               "uses the text opcode '{:c}' of pickle protocol 0: save it again with torch.save's own protocol, 2",
               opcode),
           ErrorCode::unsupported);
    default:
      break;
  }
  if (const char* name = refused_opcode(opcode))
    fail(fmt::format("refuses the opcode {}", name), ErrorCode::unsupported);
  fail(fmt::format("expected a pickle opcode, found byte 0x{:02x}", opcode));
}

// Two's complement, little-endian; what does not fit 64 bits is a value of its own kind.
void Machine::push_long(std::string_view raw) {
  if (raw.empty()) return push_integer(0);
  const Node huge{Kind::big_integer, static_cast<std::uint32_t>(raw.size()),
                  static_cast<std::int64_t>(position_ - raw.size())};
  const auto sign = static_cast<unsigned char>((static_cast<unsigned char>(raw.back()) & 0x80U) != 0 ? 0xffU : 0U);
  std::uint64_t value = sign != 0 ? ~std::uint64_t{0} : 0;
  for (std::size_t i = raw.size(); i-- > 0;) {
    const auto byte = static_cast<unsigned char>(raw[i]);
    if (i >= 8 && byte != sign) return push(huge);
    if (i < 8) value = value << 8 | byte;
  }
  if ((static_cast<std::int64_t>(value) < 0) != (sign != 0)) return push(huge);
  push_integer(static_cast<std::int64_t>(value));
}

void Machine::push_decimal(std::string_view digits) {
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || end != digits.data() + digits.size() || status == std::errc::invalid_argument) {
    fail(fmt::format("expected a decimal number, found '{}'", escaped(digits)));
  }
  if (status == std::errc::result_out_of_range) {
    const auto start = digits.data() - bytes_.data();
    return push({Kind::big_integer, static_cast<std::uint32_t>(digits.size()), start});
  }
  push_integer(value);
}

void Machine::push_global(std::string_view module, std::string_view name) {
  const PickleGlobal* global = find_pickle_global(module, name);
  if (global == nullptr) {
    fail(fmt::format("refuses {}.{}: a checkpoint may hold tensors and plain values only (save the state dict alone, "
                     "without other objects)",
                     escaped(module), escaped(name)),
         ErrorCode::unsupported);
  }
  push({Kind::global, 0, global - kPickleGlobals});
}

}  // namespace pickle

PickledState read_pickle(std::string_view bytes, const std::string& where) {
  // Strings are held as 32-bit lengths.
  if (bytes.size() > kMaxPickleBytes) {
    throw Error(ErrorCode::unsupported, fmt::format("{}: refuses a pickle of {} bytes", where, bytes.size()));
  }
  pickle::Machine machine(bytes, 0, PickleForm::zip, where);
  const pickle::Index root = machine.run();
  return machine.collect(root);
}

}  // namespace swiglu::files
