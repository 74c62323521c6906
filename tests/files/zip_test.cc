// Zip directories: what torch.save, ordinary zip tools and attackers write.
#include "files/zip.h"

#include <functional>

#include "files/torch_file.h"

namespace swiglu::testing {
namespace {

using files::ZipArchive;
using files::ZipEntry;

const std::vector<ZipPart> kParts{{"r/data.pkl", "pickle"}, {"r/data/0", std::string(100, 'a')}, {"r/version", "3\n"}};

std::vector<ZipPart> parts_with(std::size_t i, const std::function<void(ZipPart&)>& change) {
  std::vector<ZipPart> parts = kParts;
  change(parts[i]);
  return parts;
}

void refuses(const std::string& bytes, const std::vector<std::string>& pieces, ErrorCode code = ErrorCode::format) {
  const BytesFile file(bytes);
  std::vector<std::string> all = pieces;
  all.push_back("x.pth");
  expect_error(code, all, [&] { const ZipArchive zip(*file); });
}

void accepts(const std::string& bytes) {
  const BytesFile file(bytes);
  const ZipArchive zip(*file);
  ASSERT_EQ(zip.entries().size(), 3U);
  const ZipEntry* entry = zip.find("r/data/0");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->size, 100U);
  EXPECT_EQ(bytes.substr(entry->offset, 100), std::string(100, 'a'));
  EXPECT_EQ(zip.read(*entry, 100), std::string(100, 'a'));
  zip.check_crc(*entry);
  EXPECT_EQ(zip.find("r/data/1"), nullptr);
}

TEST(Zip, reads_what_torch_writes) {
  accepts(zip_bytes(kParts));
  const BytesFile file(zip_bytes(kParts));
  const ZipArchive zip(*file);
  for (const ZipEntry& entry : zip.entries()) EXPECT_EQ(entry.offset % 64, 0U) << entry.name;
}

TEST(Zip, reads_what_ordinary_zip_tools_write) {  // P23, P24
  ZipShape plain;
  plain.torch = false;
  accepts(zip_bytes(kParts, plain));
  accepts(zip_bytes({kParts[2], kParts[1], kParts[0]}, plain));
}

TEST(Zip, accepts_an_archive_comment) {  // P25
  ZipShape shape;
  shape.comment = std::string(60000, 'c');
  accepts(zip_bytes(kParts, shape));
  shape.torch = false;
  accepts(zip_bytes(kParts, shape));
}

TEST(Zip, tells_a_truncated_file_at_every_length) {  // P02
  for (const bool torch : {true, false}) {
    ZipShape shape;
    shape.torch = torch;
    const std::string bytes = zip_bytes(kParts, shape);
    const TemporaryFolder folder;
    write_file(folder / "x.pth", bytes);
    for (std::size_t n = bytes.size(); n-- > 0;) {
      std::filesystem::resize_file(folder / "x.pth", n);
      const auto file = std::make_shared<const files::File>(folder / "x.pth");
      EXPECT_THROW(const ZipArchive zip(file), Error) << n;
    }
    refuses(bytes.substr(0, 200), {"truncated or not a zip"});
  }
}

TEST(Zip, refuses_a_directory_outside_the_file) {  // P03
  ZipShape shape;
  shape.directory = 100000;
  refuses(zip_bytes(kParts, shape), {});
  shape.torch = false;
  refuses(zip_bytes(kParts, shape), {});
}

TEST(Zip, refuses_a_wrong_count) {  // P04, P05
  for (const bool torch : {true, false}) {
    for (const std::uint64_t count : std::initializer_list<std::uint64_t>{0, 1, 2, 4, 65535}) {
      ZipShape shape;
      shape.torch = torch;
      shape.count = count;
      refuses(zip_bytes(kParts, shape), {});
    }
  }
  ZipShape shape;
  shape.count = std::uint64_t{1} << 63;
  refuses(zip_bytes(kParts, shape), {"9223372036854775808 entries"});
}

TEST(Zip, refuses_an_archive_in_several_parts) {
  ZipShape plain;
  plain.torch = false;
  std::string bytes = zip_bytes(kParts, plain);
  bytes[bytes.size() - 18] = 1;  // the number of this disk
  refuses(bytes, {"part of several"});
}

TEST(Zip, refuses_a_zip64_locator_that_points_nowhere) {  // P05
  for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{100}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    ZipShape shape;
    shape.zip64_at = at;
    refuses(zip_bytes(kParts, shape), {});
  }
}

TEST(Zip, refuses_bytes_before_the_archive) {
  for (const bool torch : {true, false}) {
    ZipShape shape;
    shape.torch = torch;
    shape.prefix = "#!/bin/sh\nexit\n";
    refuses(zip_bytes(kParts, shape), {});
    shape.prefix = zip_bytes(kParts);
    refuses(zip_bytes(kParts, shape), {});
  }
}

TEST(Zip, refuses_bytes_after_the_archive) {
  refuses(zip_bytes(kParts) + "x", {"end record"});
  refuses(zip_bytes(kParts) + zip_bytes(kParts), {});
}

TEST(Zip, refuses_a_local_header_that_is_not_there) {  // P06
  refuses(zip_bytes(parts_with(1, [](ZipPart& p) { p.local_signature = 0x04034b51; })), {"r/data/0", "local header"});
  for (const std::uint32_t header : {1U, 64U, 0x7fffffffU, 0xfffffffeU, 0xffffffffU}) {
    refuses(zip_bytes(parts_with(1, [&](ZipPart& p) { p.header = header; })), {});
  }
}

TEST(Zip, refuses_a_local_name_that_differs) {  // P07
  refuses(zip_bytes(parts_with(1, [](ZipPart& p) { p.local_name = "r/data/9"; })), {"r/data/0", "r/data/9"});
  refuses(zip_bytes(parts_with(1, [](ZipPart& p) { p.local_name = "r/data/10"; })), {"r/data/0"});
}

TEST(Zip, refuses_encryption) {  // P08
  refuses(zip_bytes(parts_with(0, [](ZipPart& p) { p.flags = 0x0809; })), {"r/data.pkl", "encrypted"},
          ErrorCode::unsupported);
  refuses(zip_bytes(parts_with(0, [](ZipPart& p) { p.local_flags = 0x0809; })), {"r/data.pkl", "encrypted"});
}

TEST(Zip, refuses_unknown_and_contradicting_compression) {  // P10
  refuses(zip_bytes(parts_with(0, [](ZipPart& p) { p.method = 99; })), {"r/data.pkl", "99"}, ErrorCode::unsupported);
  refuses(zip_bytes(parts_with(0, [](ZipPart& p) { p.local_method = 8; })), {"r/data.pkl"});
}

TEST(Zip, lists_compressed_entries_but_does_not_read_them) {  // P10
  const BytesFile file(zip_bytes(parts_with(0, [](ZipPart& p) { p.method = 8; })));
  const ZipArchive zip(*file);
  const ZipEntry* entry = zip.find("r/data.pkl");
  ASSERT_NE(entry, nullptr);
  EXPECT_FALSE(entry->stored);
  expect_error(ErrorCode::unsupported, {"x.pth", "r/data.pkl", "compressed"}, [&] { (void)zip.read(*entry, 100); });
}

TEST(Zip, refuses_two_sizes_of_a_stored_entry) {  // P14
  refuses(zip_bytes(parts_with(1, [](ZipPart& p) { p.usize = 99; })), {"r/data/0", "100", "99"});
}

TEST(Zip, refuses_overlapping_and_overlong_payloads) {  // P13
  refuses(zip_bytes(parts_with(1, [](ZipPart& p) { p.csize = p.usize = 5000; })), {"r/data/0", "5000"});
  refuses(zip_bytes(parts_with(2, [](ZipPart& p) { p.csize = p.usize = 500; })), {"r/version", "500"});
  refuses(zip_bytes(parts_with(2, [](ZipPart& p) { p.csize = p.usize = 0xfffffffe; })), {"r/version"});
}

TEST(Zip, refuses_a_shifted_payload) {
  // Other lengths of the local extra field shift the payload; nothing else tells.
  for (const bool torch : {true, false}) {
    ZipShape shape;
    shape.torch = torch;
    const std::string good = zip_bytes(kParts, shape);
    const std::size_t extra_length = good.find("r/data/0") - 2;
    for (const int shift : {-8, -4, -1, 1, 4, 8}) {
      std::string bad = good;
      bad[extra_length] = static_cast<char>(bad[extra_length] + shift);
      refuses(bad, {"r/data/0"});
    }
  }
}

TEST(Zip, refuses_holes) {
  ZipShape plain;
  plain.torch = false;
  refuses(zip_bytes(parts_with(1, [](ZipPart& p) { p.csize = p.usize = 99; }), plain), {"r/data/0", "99 bytes"});
  refuses(zip_bytes(parts_with(1, [](ZipPart& p) { p.csize = p.usize = 96; })), {"r/data/0", "96 bytes"});
}

TEST(Zip, refuses_many_names_for_one_body) {  // P13
  std::vector<ZipPart> parts = kParts;
  parts[1].local_name = parts[0].local_name = "r/version_";
  parts[2].name = "r/version_";
  refuses(zip_bytes(parts), {});
}

TEST(Zip, refuses_a_name_that_occurs_twice) {  // P11
  refuses(zip_bytes({kParts[0], kParts[1], kParts[1]}), {"r/data/0", "twice"});
}

TEST(Zip, refuses_names_that_could_lead_out_of_a_folder) {  // P12
  for (const std::string& name :
       {std::string("../x"), std::string("/etc/passwd"), std::string("r/../../x"), std::string("r\\data.pkl"),
        std::string("r/a\0b", 5), std::string("r/.."), std::string()}) {
    refuses(zip_bytes(parts_with(2, [&](ZipPart& p) { p.name = name; })), {"name"});
  }
  const BytesFile file(zip_bytes(parts_with(2, [](ZipPart& p) { p.name = "r/a..b"; })));
  EXPECT_NE(ZipArchive(*file).find("r/a..b"), nullptr);
}

TEST(Zip, escapes_names_in_messages) {
  refuses(zip_bytes({kParts[0], {"r/\x1b[31m\n", "x"}, {"r/\x1b[31m\n", "x"}}), {"r/\\x1b[31m\\n"});
}

TEST(Zip, checks_the_checksum_when_it_reads) {  // P09
  const BytesFile file(zip_bytes(parts_with(1, [](ZipPart& p) { p.crc = 0x12345678; })));
  const ZipArchive zip(*file);
  const auto& entry = *zip.find("r/data/0");
  expect_error(ErrorCode::format, {"x.pth", "r/data/0", "12345678"}, [&] { (void)zip.read(entry, 100); });
  expect_error(ErrorCode::format, {"x.pth", "r/data/0", "12345678"}, [&] { zip.check_crc(entry); });
  expect_error(ErrorCode::unsupported, {"x.pth", "r/data/0", "99"}, [&] { (void)zip.read(entry, 99); });
}

TEST(Zip, a_file_that_shrinks_is_an_io_error) {
  const TemporaryFolder folder;
  write_file(folder / "x.pth", zip_bytes(kParts));
  const auto file = std::make_shared<const files::File>(folder / "x.pth");
  const ZipArchive zip(file);
  std::filesystem::resize_file(folder / "x.pth", 100);
  expect_error(ErrorCode::io, {"x.pth"}, [&] { (void)zip.read(*zip.find("r/data/0"), 100); });
  expect_error(ErrorCode::io, {"x.pth"}, [&] { const ZipArchive again(file); });
}

TEST(Zip, reads_tens_of_thousands_of_entries) {
  std::vector<ZipPart> parts;
  for (int i = 0; i < 70000; ++i) parts.push_back({"r/data/" + std::to_string(i), std::to_string(i)});
  const BytesFile file(zip_bytes(parts));
  const ZipArchive zip(*file);
  ASSERT_EQ(zip.entries().size(), parts.size());
  EXPECT_EQ(zip.read(*zip.find("r/data/69999"), 10), "69999");
}

}  // namespace
}  // namespace swiglu::testing
