// Step in Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tandem {

void bind_step(nanobind::module_& module);

}  // namespace tandem
