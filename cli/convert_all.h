// The part of `convert` that copies whole models.
#pragma once

#include "commands.h"

namespace swiglu::cli {

/// `convert --all`: everything that is in the model, in another number of files of its own format.
int convert_all(const ConvertOptions& options);

}  // namespace swiglu::cli
