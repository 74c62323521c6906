// The pickle machine: what torch.save writes is understood, everything else is refused by name, and no
// pickle costs more than a little memory and time.
#include "files/pickle.h"

#include <chrono>
#include <functional>

#include "files/torch_file.h"

namespace swiglu::testing {
namespace {

using files::PickledState;
using files::read_pickle;
namespace p = pickled;

const std::string kStorage = p::storage("0", 6);
const std::string kTensor = p::tensor(kStorage, 0, {2, 3}, {3, 1});

PickledState read(const std::string& bytes) { return read_pickle(bytes, "x.pth"); }

void refuses(const std::string& body, const std::vector<std::string>& pieces, ErrorCode code = ErrorCode::format) {
  std::vector<std::string> all = pieces;
  all.insert(all.end(), {"x.pth", "data.pkl byte"});
  expect_error(code, all, [&] { (void)read(p::whole(body)); });
}
void refuses_by_name(const std::string& body, const std::vector<std::string>& pieces) {
  refuses(body, pieces, ErrorCode::unsupported);
}
// As a value beside a tensor in an otherwise sound state dict.
std::string beside(const std::string& value) { return p::dict({{"extra", value}, {"w", kTensor}}); }

void expect_one_tensor(const PickledState& state, const std::string& name = "w") {
  ASSERT_EQ(state.tensors.size(), 1U);
  ASSERT_EQ(state.tensors.begin()->first, name);
  const auto& tensor = state.tensors.begin()->second;
  EXPECT_EQ(tensor.sizes, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(tensor.strides, (std::vector<std::int64_t>{3, 1}));
  EXPECT_EQ(tensor.offset, 0);
  ASSERT_EQ(state.storages.size(), 1U);
  EXPECT_EQ(state.storages[tensor.storage].key, "0");
  EXPECT_EQ(state.storages[tensor.storage].elements, 6);
  EXPECT_EQ(tensor.type->dtype, DType::f32);
  EXPECT_EQ(tensor.type->name, "torch.FloatStorage");
}

TEST(Pickle, reads_a_state_dict) {
  expect_one_tensor(read(p::whole(p::dict({{"w", kTensor}}))));
  expect_one_tensor(read(p::whole(p::ordered_dict() + p::items({{"w", kTensor}}))));
  // OrderedDict's attributes (_metadata) are set by BUILD.
  expect_one_tensor(
      read(p::whole(p::ordered_dict() + p::items({{"w", kTensor}}) + p::dict({{"_metadata", "}"}}) + "b")));
  // The old form: OrderedDict([[name, tensor]]).
  const std::string pair = "](" + p::text("w") + kTensor + "e";
  expect_one_tensor(read(p::whole(p::call(p::global("collections", "OrderedDict"), "](" + pair + "e\x85"))));
  EXPECT_TRUE(read(p::whole("}")).tensors.empty());
}

TEST(Pickle, reads_every_binary_protocol) {
  const std::string body = p::dict({{"w", kTensor}});
  expect_one_tensor(read(body + "."));  // protocol 1 has no PROTO
  for (const char version : {'\1', '\2', '\3', '\4', '\5'}) {
    expect_one_tensor(read(std::string("\x80") + version + body + "."));
  }
  // Protocol 4: frames, short strings, MEMOIZE, STACK_GLOBAL.
  const std::string dict =
      "\x8c\x0b"
      "collections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94";
  const std::string framed = dict + "(\x8c\x01w\x94" + kTensor + "u.";
  expect_one_tensor(read("\x80\x04\x95" + little(framed.size(), 8) + framed));
}

TEST(Pickle, knows_every_type) {
  const std::pair<const char*, std::optional<DType>> types[] = {
      {"FloatStorage", DType::f32}, {"DoubleStorage", DType::f64},
      {"HalfStorage", DType::f16},  {"BFloat16Storage", DType::bf16},
      {"LongStorage", {}},          {"IntStorage", {}},
      {"ShortStorage", {}},         {"CharStorage", {}},
      {"ByteStorage", {}},          {"BoolStorage", {}}};
  for (const auto& [name, dtype] : types) {
    const auto state = read(p::whole(p::dict({{"w", p::tensor(p::storage("0", 6, name), 0, {6}, {1})}})));
    EXPECT_EQ(state.tensors.at("w").type->dtype, dtype) << name;
    EXPECT_EQ(state.tensors.at("w").type->name, std::string("torch.") + name);
  }
}

std::string untyped(const std::string& dtype, const std::string& last = "") {
  const std::string storage = p::tuple({p::text("storage"), p::global("torch.storage", "UntypedStorage"), p::text("1"),
                                        p::text("cpu"), p::number(12)}) +
                              "Q";
  return p::call(
      p::global("torch._utils", "_rebuild_tensor_v3"),
      p::tuple({storage, p::number(0), p::numbers({6}), p::numbers({1}), "\x89", p::ordered_dict(), dtype}) + last);
}

TEST(Pickle, reads_tensors_over_untyped_bytes) {
  auto state = read(p::whole(p::dict({{"w", untyped(p::global("torch", "bfloat16"))}})));
  EXPECT_EQ(state.tensors.at("w").type->dtype, DType::bf16);
  EXPECT_EQ(state.storages[0].elements, 12);
  state = read(p::whole(p::dict({{"w", untyped(p::global("torch", "float8_e4m3fn"))}})));
  EXPECT_EQ(state.tensors.at("w").type->dtype, std::nullopt);
  EXPECT_EQ(state.tensors.at("w").type->name, "torch.float8_e4m3fn");
  refuses_by_name(p::dict({{"w", untyped(p::global("torch", "complex32"))}}), {"torch.complex32"});
  refuses(p::dict({{"w", untyped(p::number(3))}}), {"element type", "an integer"});
}

TEST(Pickle, reads_parameters_and_the_oldest_form) {  // P66
  const std::string parameter =
      p::call(p::global("torch._utils", "_rebuild_parameter"), p::tuple({kTensor, "\x88", p::ordered_dict()}));
  expect_one_tensor(read(p::whole(p::dict({{"w", parameter}}))));
  const std::string oldest = p::call(p::global("torch._utils", "_rebuild_tensor"),
                                     p::tuple({kStorage, p::number(0), p::numbers({2, 3}), p::numbers({3, 1})}));
  expect_one_tensor(read(p::whole(p::dict({{"w", oldest}}))));
}

// P70
TEST(Pickle, takes_python_2_strings_as_names) { expect_one_tensor(read(p::whole("}U\x01w" + kTensor + "s"))); }

TEST(Pickle, unwraps_one_level) {  // P64
  for (const char* wrapper : {"model", "state_dict", "model_state_dict", "module"}) {
    expect_one_tensor(read(p::whole(p::dict({{"epoch", p::number(3)}, {wrapper, p::dict({{"w", kTensor}})}}))));
  }
  EXPECT_TRUE(read(p::whole(p::dict({{"other", p::dict({{"w", kTensor}})}}))).tensors.empty());
}

TEST(Pickle, strips_prefixes) {  // P64
  for (const char* name : {"module.w", "_orig_mod.w", "module._orig_mod.w", "_orig_mod.module.w"}) {
    expect_one_tensor(read(p::whole(p::dict({{name, kTensor}}))));
  }
  refuses(p::dict({{"module.w", kTensor}, {"w", kTensor}}), {"'w'", "twice"});
}

TEST(Pickle, refuses_a_name_that_occurs_twice) {  // P62
  refuses(p::dict({{"w", kTensor}, {"w", kTensor}}), {"'w'", "twice"});
  refuses(p::dict({{"a\x1b", p::number(1)}, {"a\x1b", kTensor}}), {"a\\x1b"});
}

TEST(Pickle, tolerates_plain_values_beside_tensors) {
  for (const std::string& value : {std::string("N"),
                                   std::string("\x88"),
                                   std::string("G\x40\x09\x21\xfb\x54\x44\x2d\x18"),
                                   p::number(1),
                                   p::text("x"),
                                   std::string("](K\x01K\x02"
                                               "e"),
                                   p::dict({{"a", "]"}}),
                                   std::string("C\x02zz"),
                                   std::string("I01\n"),
                                   std::string("I-12\n"),
                                   std::string("L123456789012345678901234567890L\n"),
                                   std::string("(K\x01K\x02l"),
                                   "(" + p::text("k") + "Nd",
                                   p::call(p::global("__builtin__", "set"),
                                           "](K\x01"
                                           "e\x85"),
                                   p::call(p::global("torch", "device"), p::text("cpu") + "\x85"),
                                   p::call(p::global("_codecs", "encode"), p::text("x") + p::text("latin1") + "\x86"),
                                   p::global("torch", "float32"),
                                   std::string("N0N"),
                                   std::string("(NNN1N"),
                                   std::string("N20")}) {
    expect_one_tensor(read(p::whole(beside(value))));
  }
}

TEST(Pickle, refuses_os_system_by_name) {  // P26; P78: nothing else reads pickles
  refuses_by_name(beside(p::call(p::global("os", "system"), p::text("id") + "\x85")), {"os.system"});
}

TEST(Pickle, refuses_every_other_global_by_name) {  // P27, P28, P53, P67, P68, P69
  const std::pair<const char*, const char*> names[] = {{"posix", "system"},
                                                       {"nt", "system"},
                                                       {"builtins", "eval"},
                                                       {"builtins", "exec"},
                                                       {"builtins", "getattr"},
                                                       {"__builtin__", "eval"},
                                                       {"subprocess", "Popen"},
                                                       {"runpy", "run_path"},
                                                       {"webbrowser", "open"},
                                                       {"pty", "spawn"},
                                                       {"pip", "main"},
                                                       {"collections", "Counter"},
                                                       {"torch", "load"},
                                                       {"torch.hub", "load"},
                                                       {"torch", "QInt8Storage"},
                                                       {"torch", "ComplexFloatStorage"},
                                                       {"torch._utils", "_rebuild_sparse_tensor"},
                                                       {"torch._utils", "_rebuild_qtensor"},
                                                       {"numpy.core.multiarray", "_reconstruct"},
                                                       {"argparse", "Namespace"},
                                                       {"__main__", "Model"},
                                                       {"torch._utils", ""},
                                                       {"torch", "FloatStorage.x"}};
  for (const auto& [module, name] : names) {
    refuses_by_name(beside(p::global(module, name)), {std::string(module) + "." + name});
    // Never called: only pushed and dropped.
    refuses_by_name(p::global(module, name) + "0" + p::dict({{"w", kTensor}}), {std::string(module) + "." + name});
    // Through the stack.
    refuses_by_name(p::text(module) + p::text(name) +
                        "\x93"
                        "0" +
                        p::dict({{"w", kTensor}}),
                    {module});
  }
}

TEST(Pickle, hints_at_what_to_do_with_foreign_objects) {  // P69
  refuses_by_name(beside(p::global("argparse", "Namespace")), {"save the state dict alone"});
}

TEST(Pickle, escapes_names_of_globals) {
  refuses_by_name(p::global("os\x1b[2J", "sys\ttem"), {"os\\x1b[2J.sys\\ttem"});
}

TEST(Pickle, stack_global_takes_strings_only) {  // P29
  refuses(p::number(1) + p::text("system") + "\x93", {"module", "an integer"});
  refuses(p::text("os") + "N\x93", {"name", "None"});
  refuses(p::text("os") + "\x93", {"stack"});
  // Names out of the memo are names all the same.
  refuses_by_name(p::text("system") +
                      "q\x05"
                      "0" +
                      p::text("os") + "h\x05\x93",
                  {"os.system"});
}

TEST(Pickle, refuses_opcodes_that_build_objects) {  // P30, P31
  refuses_by_name("(ios\nsystem\n", {"INST"});
  refuses_by_name("(" + p::global("collections", "OrderedDict") + "o", {"OBJ"});
  refuses_by_name(p::global("collections", "OrderedDict") + ")}\x92", {"NEWOBJ_EX"});
  refuses_by_name("\x82\x01", {"EXT1"});
  refuses_by_name(std::string("\x83\x01\0", 3), {"EXT2"});
  refuses_by_name(std::string("\x84\x01\0\0\0", 5), {"EXT4"});
  refuses_by_name("\x8f", {"EMPTY_SET"});
  refuses_by_name("(\x90", {"ADDITEMS"});
  refuses_by_name("(\x91", {"FROZENSET"});
  refuses_by_name("\x97", {"NEXT_BUFFER"});
  refuses_by_name("\x98", {"READONLY_BUFFER"});
}

TEST(Pickle, hints_at_the_text_protocol) {  // P77
  for (const char* body : {"(dp0\n", "g0\n", "Vabc\n", "S'abc'\n", "F1.5\n", "Pabc\n"}) {
    expect_error(ErrorCode::unsupported, {"x.pth", "protocol 0", "torch.save"}, [&] { (void)read(body); });
  }
}

TEST(Pickle, refuses_unknown_opcodes_and_protocols) {  // P45
  refuses("\xff", {"0xff"});
  refuses(std::string(1, '\0'), {"0x00"});
  for (const char version : {'\6', '\xff'}) {
    expect_error(ErrorCode::unsupported, {"protocol 1 to 5"},
                 [&] { (void)read(std::string("\x80") + version + "}."); });
  }
}

TEST(Pickle, calls_take_the_right_arguments_only) {  // P32, P43, P60
  const auto v2 = [](const std::vector<std::string>& arguments) {
    return p::dict({{"w", p::call(p::global("torch._utils", "_rebuild_tensor_v2"), p::tuple(arguments))}});
  };
  const std::string hooks = p::ordered_dict();
  const std::string size = p::numbers({6});
  const std::string one = p::numbers({1});
  refuses(v2({kStorage, "K\0"}), {});
  refuses(v2({kStorage, p::number(0), size}), {"6 or 7", "_rebuild_tensor_v2", "3"});
  refuses(v2({p::number(1), p::number(0), size, one, "\x89", hooks}), {"storage", "an integer"});
  refuses(v2({kStorage, p::text("0"), size, one, "\x89", hooks}), {"offset", "a string"});
  refuses(v2({kStorage, "\x89", size, one, "\x89", hooks}), {"offset", "a boolean"});
  refuses(v2({kStorage, p::number(0), p::text("6"), one, "\x89", hooks}), {"sizes", "a string"});
  refuses(v2({kStorage, p::number(0), p::tuple({p::text("6")}), one, "\x89", hooks}), {"sizes", "a string"});
  refuses(v2({kStorage, p::number(0), size, "N", "\x89", hooks}), {"strides", "None"});
  refuses(v2({kStorage, p::number(0), size, p::numbers({1, 1}), "\x89", hooks}),
          {"as many strides as sizes", "2", "1"});
  // 255 bytes of LONG1 are a number, but no size.
  refuses(v2({kStorage, p::number(0), p::tuple({"\x8a\xff" + std::string(255, '\1')}), one, "\x89", hooks}),
          {"sizes", "a huge integer"});
  refuses(p::call(p::global("collections", "OrderedDict"), "K\x01\x85"), {"collections.OrderedDict"});
  refuses(p::call(p::global("collections", "OrderedDict"),
                  "](K\x01"
                  "e\x85"),
          {"pairs"});
  refuses(p::call(p::global("torch._utils", "_rebuild_parameter"), "K\x01\x85"), {"_rebuild_parameter"});
  refuses_by_name(p::call(p::global("torch", "FloatStorage"), ")"), {"torch.FloatStorage"});
  refuses(p::call("N", ")"), {"called", "None"});
  refuses(p::call(p::global("collections", "OrderedDict"), "]"), {"arguments", "a list"});
  refuses("R", {"stack"});
  refuses(p::global("collections", "OrderedDict") + "R", {"arguments"});
  refuses(v2({kStorage, p::number(0), p::tuple(std::vector<std::string>(17, "K\x01")), one, "\x89", hooks}), {},
          ErrorCode::unsupported);
}

TEST(Pickle, refuses_tensors_whose_values_are_not_the_bytes) {  // P33
  const auto with = [](const std::string& metadata) {
    return p::dict({{"w", p::call(p::global("torch._utils", "_rebuild_tensor_v2"),
                                  p::tuple({kStorage, p::number(0), p::numbers({2, 3}), p::numbers({3, 1}), "\x89",
                                            p::ordered_dict(), metadata}))}});
  };
  expect_one_tensor(read(p::whole(with("}"))));
  expect_one_tensor(read(p::whole(with("N"))));
  refuses_by_name(with(p::dict({{"neg", "\x88"}})), {"negated"});
  // BUILD would point the tensor at other bytes.
  refuses_by_name(p::dict({{"w", kTensor + "}b"}}), {"state", "a tensor"});
  refuses_by_name(p::dict({{"w", kTensor}}) + "}b", {"state", "a dict"});
}

TEST(Pickle, containers_take_their_own_kind_of_items) {  // P34, P35, P36
  refuses(p::number(1) + p::text("a") + "Ns", {"a dict", "an integer"});
  refuses(p::number(1) + "(" + p::text("a") + "Nu", {"a dict", "an integer"});
  refuses("](NNu", {"a dict", "a list"});
  refuses(p::dict({{"w", kTensor + "(NNu"}}), {"a dict", "a tensor"});
  refuses("}(NNNu", {"odd"});
  refuses("(NNNd", {"odd"});
  refuses("}Na", {"a list", "a dict"});
  refuses("}(Ne", {"a list", "a dict"});
  refuses(")(Ne", {"a list", "a tuple"});
}

TEST(Pickle, refuses_an_empty_stack) {  // P37
  for (const char* body : {"0", "2", "\x85", "N\x86", "N\x87", "NN\x87", "a", "Na", "s", "Ns", "NNs", "b", "Q", "q\1",
                           "\x93", "(\x85", "N(\x85", "N(2", "](Na"}) {
    expect_error(ErrorCode::format, {"x.pth"}, [&] { (void)read(p::whole(body)); });
  }
}

TEST(Pickle, refuses_a_missing_mark) {  // P38
  for (const char* body : {"Nt", "Nl", "NNd", "]Ne", "}NNu", "N1"}) refuses(body, {"MARK"});
  refuses("(", {"one value"});
  refuses("}(", {"one value"});
  refuses("(u", {"a dict"});
  refuses("(e", {"a list"});
  refuses("(((((((u", {"a dict"});
}

TEST(Pickle, refuses_memo_tricks) {  // P39, P40
  refuses("h\x07", {"memo 7"});
  refuses("j" + little(0xffffffff, 4), {"memo 4294967295"});
  refuses_by_name("Nr" + little(0xffffffff, 4), {"4294967295"});
  expect_one_tensor(read(p::whole("}r" + little(100000, 4) + p::items({{"w", kTensor}}))));
}

TEST(Pickle, compares_lengths_with_what_is_left) {  // P41, P42, P43, P46
  const std::uint64_t huge = std::uint64_t{1} << 60;
  refuses("\x8d" + little(huge, 8), {"1152921504606846976"});
  refuses("\x8e" + little(huge, 8), {"1152921504606846976"});
  refuses("\x96" + little(~std::uint64_t{0}, 8), {"18446744073709551615"});
  refuses("\x95" + little(huge, 8), {"frame", "1152921504606846976"});
  refuses("X" + little(1000, 4), {"1000"});
  refuses("X" + little(0xffffffff, 4), {"4294967295"});
  refuses("U\xff", {"255"});
  refuses("T" + little(0xffffffff, 4), {"-1"});
  refuses("\x8b" + little(0xffffffff, 4), {"-1"});
  refuses("\x8b" + little(0x7fffffff, 4), {"2147483647"});
  refuses("cos", {"line"});
  refuses("I12", {"line"});
  refuses("Ixyz\n", {"'xyz'"});
  refuses("I\n", {"decimal"});
  refuses("G\1", {"8 more bytes"});
}

TEST(Pickle, stops_with_one_value) {  // P44
  expect_error(ErrorCode::format, {"STOP"}, [] { (void)read("\x80\x02}"); });
  expect_error(ErrorCode::format, {"STOP"}, [] { (void)read(""); });
  refuses("", {"one value", "0"});
  refuses("}}", {"one value", "2"});
  expect_one_tensor(read(p::whole(p::dict({{"w", kTensor}})) + "cos\nsystem\n anything"));
}

TEST(Pickle, the_root_is_a_dict) {  // P63
  expect_one_tensor(read(p::whole(kTensor)), "tensor");  // or one tensor alone
  refuses(p::number(3), {"state dict", "an integer"});
  refuses("](" + kTensor + "e", {"a list"});
  refuses("N", {"None"});
}

TEST(Pickle, checks_persistent_ids) {  // P51, P52, P54, P65
  const auto with = [](const std::vector<std::string>& parts) { return p::tuple(parts) + "Q"; };
  const std::string type = p::global("torch", "FloatStorage");
  const std::string word = p::text("storage");
  refuses(p::text("0") + "Q", {"persistent id", "a string"});
  refuses(with({word, type, p::text("0"), p::text("cpu")}), {"persistent id", "4"});
  refuses(with({p::text("module"), type, p::text("0"), p::text("cpu"), p::number(1)}), {"module"});
  refuses(with({word, p::text("FloatStorage"), p::text("0"), p::text("cpu"), p::number(1)}), {"a string"});
  refuses(with({word, p::global("torch", "float32"), p::text("0"), p::text("cpu"), p::number(1)}), {"torch.float32"});
  refuses(with({word, p::global("torch.storage", "TypedStorage"), p::text("0"), p::text("cpu"), p::number(1)}),
          {"TypedStorage"});
  refuses(with({word, type, p::number(0), p::text("cpu"), p::number(1)}), {"an integer"});
  for (const char* key : {"../../data.pkl", "data.pkl", "-1", "", "0/1", "123456789012345678901"}) {
    refuses(with({word, type, p::text(key), p::text("cpu"), p::number(1)}), {"key", key});
  }
  refuses(with({word, type, p::text(std::string("0\0", 2)), p::text("cpu"), p::number(1)}), {"0\\x00"});
  refuses_by_name(p::storage("7", 1, "FloatStorage", "meta"), {"storage 7", "meta"});
  expect_one_tensor(
      read(p::whole(p::dict({{"w", p::tensor(p::storage("0", 6, "FloatStorage", "cuda:7"), 0, {2, 3}, {3, 1})}}))));
  refuses(p::storage("7", -1), {"storage 7", "-1"});
  refuses(with({word, type, p::text("0"), p::text("cpu"), p::text("1")}), {"a string"});
}

TEST(Pickle, a_storage_has_one_type_and_size) {  // P61
  const auto two = [](const std::string& a, const std::string& b) {
    return p::dict({{"a", p::tensor(a, 0, {1}, {1})}, {"b", p::tensor(b, 0, {1}, {1})}});
  };
  EXPECT_EQ(read(p::whole(two(kStorage, kStorage))).storages.size(), 1U);
  EXPECT_EQ(read(p::whole(two(kStorage, p::storage("1", 6)))).storages.size(), 2U);
  refuses(two(kStorage, p::storage("0", 6, "IntStorage")), {"storage 0", "FloatStorage", "IntStorage"});
  refuses(two(kStorage, p::storage("0", 7)), {"storage 0", "6", "7"});
}

// The rest: pickles that cost more than they weigh.

double seconds_of(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Pickle, shared_structure_is_not_expanded) {  // P47
  std::string doubling = ")";
  for (int i = 0; i < 64; ++i) doubling += "2\x86";
  EXPECT_LT(seconds_of([&] { expect_one_tensor(read(p::whole(beside(doubling)))); }), 300.0);
  std::string lists = "]";
  for (int i = 0; i < 64; ++i)
    lists += std::string("q\1") +
             "0](h\1h\1"
             "e";
  EXPECT_LT(seconds_of([&] { expect_one_tensor(read(p::whole(beside(lists)))); }), 300.0);
}

TEST(Pickle, deep_nesting_does_not_recurse) {  // P49
  std::string nested = std::string(")") + std::string(1000000, '\x85');
  EXPECT_LT(seconds_of([&] { expect_one_tensor(read(p::whole(beside(nested)))); }), 300.0);
  refuses(nested, {"a tuple"});
  refuses_by_name(std::string(1000000, '('), {"nesting"});
}

TEST(Pickle, cycles_are_not_walked) {  // P50
  expect_one_tensor(
      read(p::whole(beside("]q\1h\1"
                           "a"))));
  expect_one_tensor(read(p::whole("}q\1" + p::items({{"w", kTensor}, {"self", "h\1"}, {"model", "h\1"}}) + "0h\1")));
}

TEST(Pickle, steps_are_limited) {  // P48
  const std::string many = "](" + std::string(5000000, ')');
  refuses_by_name(many, {"4194304 values"});
  refuses_by_name(std::string(")") + std::string(9000000, '2'), {"8388608 steps"});
  EXPECT_THROW((void)read(std::string(files::kMaxPickleBytes + 1, ')')), Error);
  // Copying one long list again and again is work, too.
  std::string pairs = "](";
  for (int i = 0; i < 1000; ++i) pairs += "NN\x86";
  pairs +=
      "eq\1"
      "0";
  std::string copies = p::global("collections", "OrderedDict") +
                       "q\2"
                       "0" +
                       pairs;
  for (int i = 0; i < 100000; ++i) copies += "h\2h\1\x85R0";
  refuses_by_name(copies, {"steps"});
}

TEST(Pickle, survives_every_cut_and_every_flip) {
  const std::string good =
      p::whole(p::ordered_dict() + p::items({{"w", kTensor}, {"b", untyped(p::global("torch", "float16"))}}));
  EXPECT_EQ(read(good).tensors.size(), 2U);
  for (std::size_t n = 0; n < good.size(); ++n) EXPECT_THROW((void)read(good.substr(0, n)), Error) << n;
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (int value = 0; value < 256; ++value) {
      std::string bad = good;
      bad[i] = static_cast<char>(value);
      try {
        (void)read(bad);
      } catch (const Error& error) {
        EXPECT_LT(error.text().size(), 1000U);
      }
    }
  }
}

}  // namespace
}  // namespace swiglu::testing
