// The front door's NewFile over OutputFile.
#include "files/output.h"

namespace swiglu {

struct NewFile::Impl {
  files::OutputFile file;
};

NewFile::NewFile(const std::filesystem::path& path) : impl_(new Impl{files::OutputFile(path)}) {}
NewFile::~NewFile() = default;
NewFile::NewFile(NewFile&&) noexcept = default;
NewFile& NewFile::operator=(NewFile&&) noexcept = default;
void NewFile::write(std::string_view text) { impl_->file.write(text); }
void NewFile::commit() { impl_->file.commit(); }

}  // namespace swiglu
