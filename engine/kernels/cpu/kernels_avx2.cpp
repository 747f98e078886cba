#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels.h"
#include "target.h"

#if defined(__x86_64__)
#include <immintrin.h>

TANDEM_TARGET_BEGIN("avx2,fma,f16c")
namespace tandem {
namespace avx2 {

#define TANDEM_HEADS_TOGETHER 2
#include "vector_avx2.h"
#include "kernel_table.h"

}  // namespace avx2

const Kernels* avx2_kernels() { return avx2::kernel_table("avx2"); }

}  // namespace tandem

TANDEM_TARGET_END

#else

namespace tandem {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace tandem

#endif
