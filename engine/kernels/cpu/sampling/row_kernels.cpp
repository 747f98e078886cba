#include "row_kernels.h"

#include "../instruction_sets.h"

namespace tandem {

const RowKernels& row_kernels_named(const std::string& instruction_set) {
    const std::string name = kernels_named(instruction_set).name;
    const RowKernels* kernels = nullptr;
    if (name.rfind("avx512", 0) == 0) kernels = avx512_row_kernels();
    if (name == "avx2") kernels = avx2_row_kernels();
    return kernels ? *kernels : *baseline_row_kernels();
}

}  // namespace tandem
