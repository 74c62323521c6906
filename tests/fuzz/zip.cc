// Fuzz target: a zip archive's directory and entries, and the same bytes as a PyTorch checkpoint.
#include "files/zip.h"

#include "fuzz/fuzz.h"

using namespace swiglu;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryFile file(fuzz::text_of(data, size));
  fuzz::read([&] {
    const files::ZipArchive zip(file.open());
    for (const files::ZipEntry& entry : zip.entries()) {
      if (zip.find(entry.name) != &entry) fuzz::finding("an entry that is not found by its name");
      if (entry.offset > size || entry.size > size - entry.offset) fuzz::finding("an entry outside the file");
      if (!entry.stored) continue;
      fuzz::read([&] { (void)zip.read(entry, 1 << 16); });
      fuzz::read([&] { zip.check_crc(entry); });
    }
  });
  fuzz::read([&] { fuzz::walk(files::read_pth(file.open())); });
  fuzz::read([&] { files::check_pth_payloads(file.open()); });
  return 0;
}
