// What the parts of the Python seam share.
#pragma once

#include <cstdint>

#include <nanobind/nanobind.h>

namespace tandem {

template <class T>
T* pointer(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

void bind_dense(nanobind::module_& module);     // Matrix, PreparedRows
void bind_sampling(nanobind::module_& module);  // BatchSampler
void bind_step(nanobind::module_& module);      // Step and its parts

}  // namespace tandem
