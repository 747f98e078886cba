#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels.h"
#include "target.h"

#if defined(__x86_64__)
#include <immintrin.h>

TANDEM_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
namespace tandem {
namespace avx512 {

#define TANDEM_HEADS_TOGETHER 4
#include "vector_avx512.h"
#include "kernel_table.h"

}  // namespace avx512

const Kernels* avx512_kernels() { return avx512::kernel_table("avx512"); }

}  // namespace tandem

TANDEM_TARGET_END

#else

namespace tandem {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace tandem

#endif
