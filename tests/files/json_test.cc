// JSON as untrusted text: what is refused, and that numbers keep their kind and their exact value.
#include "files/json.h"

#include <cmath>
#include <cstdint>

#include "support/data.h"
#include "support/safetensors.h"

namespace swiglu::files {
namespace {

using swiglu::testing::expect_error;

Json parse(std::string_view text, const JsonRules& rules = {}) { return parse_json(text, rules, "a.json"); }

void refused(std::string_view text, std::string_view part, const JsonRules& rules = {}) {
  SCOPED_TRACE(std::string(text.substr(0, 60)));
  expect_error(ErrorCode::format, {"a.json: ", part}, [&] { (void)parse(text, rules); });
}

TEST(Json, reads_every_kind_of_value) {
  const Json root = parse(R"({"a": [1, -2, 2.5, "x", null, true, {}], "b": "\u00e9\n"})");
  ASSERT_EQ(root.kind, Json::Kind::object);
  const Json* a = root.find("a");
  ASSERT_NE(a, nullptr);
  ASSERT_EQ(a->array->size(), 7U);
  EXPECT_EQ((*a->array)[0].magnitude, 1U);
  EXPECT_TRUE((*a->array)[1].negative);
  EXPECT_EQ((*a->array)[1].real, -2);
  EXPECT_EQ((*a->array)[2].kind, Json::Kind::real);
  EXPECT_EQ((*a->array)[2].real, 2.5);
  EXPECT_EQ(*(*a->array)[3].string, "x");
  EXPECT_EQ((*a->array)[4].kind, Json::Kind::null);
  EXPECT_TRUE((*a->array)[5].boolean);
  EXPECT_EQ((*a->array)[6].kind, Json::Kind::object);
  EXPECT_EQ(*root.find("b")->string, "\xc3\xa9\n");
  EXPECT_EQ(root.find("c"), nullptr);
  EXPECT_EQ(parse("7").magnitude, 7U);
}

TEST(Json, keeps_integers_exact_and_never_casts_others) {
  struct Case {
    const char* text;
    bool negative;
    std::uint64_t magnitude;
  };
  for (const Case& c :
       {Case{"0", false, 0}, Case{"-0", false, 0}, Case{"9007199254740993", false, 9007199254740993U},
        Case{"18446744073709551615", false, UINT64_MAX}, Case{"-1", true, 1},
        Case{"-9223372036854775808", true, 1ULL << 63}, Case{"-9223372036854775809", true, (1ULL << 63) + 1},
        Case{"-18446744073709551615", true, UINT64_MAX}}) {
    const Json value = parse(c.text);
    EXPECT_EQ(value.kind, Json::Kind::integer) << c.text;
    EXPECT_EQ(value.negative, c.negative) << c.text;
    EXPECT_EQ(value.magnitude, c.magnitude) << c.text;
  }
  for (const char* text : {"18446744073709551616", "-18446744073709551616", "4.0", "4e0", "1e300", "-0.5", "-3e2",
                           "100000000000000000000000000000"}) {
    EXPECT_EQ(parse(text).kind, Json::Kind::real) << text;
  }
  EXPECT_EQ(parse("1e-05").real, 1e-05);
  EXPECT_EQ(parse("1e-400").real, 0);
  refused("1e400", "1e400");
}

TEST(Json, refuses_what_is_not_json) {
  for (const char* text : {"",           " ",
                           "{",          "[1",
                           "garbage",    "{}{}",
                           "{} x",       "[1,]",
                           "{\"a\":1,}", "{\"a\"}",
                           "01",         "+4",
                           "0x10",       "1.",
                           ".5",         "'a'",
                           "// x\n1",    "/* */1",
                           "nul",        "\"a",
                           "\"\t\"",     "\"\\x\"",
                           "NaN",        "Infinity",
                           "-Infinity",  "{},\"__metadata__\":{}"}) {
    refused(text, "bad JSON");
  }
}

TEST(Json, refuses_bad_utf8_byte_order_marks_nul_and_lone_surrogates) {
  refused("\"\xff\xfe\"", "bad JSON");
  refused("\"\xc0\xaf\"", "bad JSON");
  refused("\"\xed\xa0\x80\"", "bad JSON");
  refused("\xef\xbb\xbf{}", "byte order mark");
  refused(std::string_view("{}\0\0", 4), "NUL at byte 2");
  refused(std::string_view("\"a\0b\"", 5), "NUL");
  refused(R"("\ud800")", "bad JSON");
  refused(R"("\udc00")", "bad JSON");
  EXPECT_EQ(*parse(R"("\ud83d\ude00")").string, "\xf0\x9f\x98\x80");
  EXPECT_EQ(*parse(R"("a\u0000b")").string, std::string("a\0b", 3));
}

TEST(Json, refuses_duplicate_keys_after_unescaping) {
  refused(R"({"a":1,"b":2,"a":3})", "\"a\" occurs twice");
  refused(R"({"a":1,"\u0061":2})", "\"a\" occurs twice");
  refused(R"([{"x":{"k":1,"k":1}}])", "\"k\" occurs twice");
  EXPECT_EQ(parse(R"({"a":{"a":1},"A":2,"a\u0000":3})").object->size(), 3U);
}

TEST(Json, limits_depth_without_recursion) {
  JsonRules rules;
  rules.max_depth = 3;
  EXPECT_EQ(parse("[[[1]]]", rules).array->size(), 1U);
  refused("[[[[1]]]]", "deeper than 3", rules);
  refused(R"({"a":{"a":{"a":{}}}})", "deeper than 3", rules);
  refused(std::string(4'000'000, '['), "deeper than 64");
  rules.max_depth = 1000;
  refused(std::string(1000, '['), "bad JSON", rules);
}

TEST(Json, limits_the_number_of_values) {
  std::string text = "[0";
  for (int i = 0; i < 1'000'000; ++i) text += ",0";
  refused(text + "]", "more than 1000000");
}

TEST(Json, takes_leading_space_only_where_allowed) {
  JsonRules rules;
  EXPECT_EQ(parse(" \n1 \t\r\n", rules).magnitude, 1U);
  rules.leading_space = false;
  EXPECT_EQ(parse("1 \t\r\n", rules).magnitude, 1U);
  for (const char* text : {" 1", "\t1", "\n1", "\r1"}) refused(text, "white space before", rules);
}

TEST(Json, reads_python_constants_only_where_allowed) {
  JsonRules rules;
  rules.python_constants = true;
  const Json root = parse(R"({"a": NaN, "NaN": [Infinity,-Infinity, 1, -2.5, "-Infinity \" NaN", 7]})", rules);
  EXPECT_TRUE(std::isnan(root.find("a")->real));
  const auto& values = *root.find("NaN")->array;
  EXPECT_EQ(values[0].real, HUGE_VAL);
  EXPECT_EQ(values[1].real, -HUGE_VAL);
  EXPECT_EQ(values[2].magnitude, 1U);
  EXPECT_EQ(values[3].real, -2.5);
  EXPECT_EQ(*values[4].string, "-Infinity \" NaN");
  EXPECT_EQ(values[5].magnitude, 7U);
  for (const char* text : {"nan", "-NaN", "1NaN", "NaN1", "+Infinity", "[NaN", "{NaN:1}", "\"\\", "inf"}) {
    refused(text, "bad JSON", rules);
  }
}

TEST(Json, describes_values_for_messages) {
  EXPECT_EQ(parse("4").describe(), "the number 4");
  EXPECT_EQ(parse("-18446744073709551615").describe(), "the number -18446744073709551615");
  EXPECT_EQ(parse("4.0").describe(), "the number 4.0");
  EXPECT_EQ(parse("1e300").describe(), "the number 1e+300");
  EXPECT_EQ(parse(R"("a\nb")").describe(), R"(the string "a\nb")");
  EXPECT_EQ(parse("[1,2]").describe(), "an array of 2");
  EXPECT_EQ(parse("{}").describe(), "an object");
  EXPECT_EQ(parse("null").describe(), "null");
  EXPECT_EQ(parse("true").describe(), "true");
}

TEST(Json, refuses_files_that_are_too_large_or_something_else) {
  const testing::TemporaryFolder folder;
  testing::write_file(folder / "big.json", "[1,2,3]");
  expect_error(ErrorCode::format, {"big.json", "at most 6", "found 7"},
               [&] { (void)read_json(File(folder / "big.json"), {}, 6); });
  EXPECT_EQ(read_json(File(folder / "big.json"), {}, 7).array->size(), 3U);
  testing::write_file(folder / "page.json", "<!DOCTYPE html><html></html>");
  expect_error(ErrorCode::format, {"page.json", "HTML page"},
               [&] { (void)read_json(File(folder / "page.json"), {}, 100); });
}

}  // namespace
}  // namespace swiglu::files
