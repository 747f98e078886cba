#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels.h"
#include "target.h"

#if defined(__x86_64__)
#include <immintrin.h>

TANDEM_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")
namespace tandem {
namespace avx512_bf16 {

#define TANDEM_HEADS_TOGETHER 4
#include "vector_avx512.h"
#include "bfloat16_dot.h"
#define TANDEM_BFLOAT16_DOT decode<BFloat16Dot>
#include "kernel_table.h"

}  // namespace avx512_bf16

const Kernels* avx512_bf16_kernels() { return avx512_bf16::kernel_table("avx512_bf16"); }

}  // namespace tandem

TANDEM_TARGET_END

#else

namespace tandem {
const Kernels* avx512_bf16_kernels() { return nullptr; }
}  // namespace tandem

#endif
