// Which kernels this processor can run.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace tandem {

// Fastest first; the last one is always "scalar".
std::vector<const Kernels*> available_kernels();

// Throws std::invalid_argument if there is none of that name here; "auto" is the fastest.
const Kernels& kernels_named(const std::string& name);

}  // namespace tandem
