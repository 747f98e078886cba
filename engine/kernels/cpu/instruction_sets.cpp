#include "instruction_sets.h"

#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tandem {

namespace {

#if defined(__x86_64__)
bool has_f16c() {  // Clang 14 does not take its name
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace

std::vector<const Kernels*> available_kernels() {
    std::vector<const Kernels*> found;
    auto add = [&found](bool supported, const Kernels* kernels) {
        if (supported && kernels) found.push_back(kernels);
    };
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    // On Intel's processors one product of pairs takes as long as four multiply-adds of floats (measured on
    // Emerald Rapids: 1.35 against 5.5 billion a second), so converting is faster there.
    const bool pairs = avx512 && __builtin_cpu_supports("avx512bf16"), slow = __builtin_cpu_is("intel");
    add(pairs && !slow, avx512_bf16_kernels());
    add(avx512, avx512_kernels());
    add(pairs && slow, avx512_bf16_kernels());
    add(avx2, avx2_kernels());
#endif
    add(true, neon_kernels());  // part of every 64-bit Arm processor
    add(true, scalar_kernels());
    return found;
}

const Kernels& kernels_named(const std::string& name) {
    std::string names;
    for (const Kernels* kernels : available_kernels()) {
        if (name == "auto" || name == kernels->name) return *kernels;
        names += (names.empty() ? "" : ", ") + std::string(kernels->name);
    }
    throw std::invalid_argument("no kernels for the instruction set " + name + " here; there are " + names);
}

}  // namespace tandem
