// Which products go with an instruction set.
#include "dense_kernels.h"
#include "instruction_sets.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace tandem {

namespace {

const DenseKernels* best_avx512() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512vnni")) return dense_avx512_vnni();
#endif
    return dense_avx2();  // products of bytes without VNNI gain little from wider registers
}

const DenseKernels* best_neon() {
#if defined(__aarch64__) && defined(__linux__)
    constexpr unsigned long dot_products = 1ul << 20;  // HWCAP_ASIMDDP
    if (getauxval(AT_HWCAP) & dot_products) return dense_neon_dotprod();
#endif
    return dense_neon();
}

}  // namespace

const DenseKernels& dense_kernels_named(const std::string& instruction_set) {
    const std::string name = kernels_named(instruction_set).name;
    if (name.rfind("avx512", 0) == 0) return *best_avx512();
    if (name == "avx2") return *dense_avx2();
    if (name == "neon") return *best_neon();
    return *dense_scalar();
}

}  // namespace tandem
