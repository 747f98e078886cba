// Matrix and PreparedRows in Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tandem {

void bind_dense(nanobind::module_& module);

}  // namespace tandem
