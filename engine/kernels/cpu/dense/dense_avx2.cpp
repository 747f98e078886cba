#include <cmath>
#include <cstring>
#include <type_traits>

#include "dense_kernels.h"
#include "target.h"

#if defined(__x86_64__)
#include <immintrin.h>

TANDEM_TARGET_BEGIN("avx2,fma,f16c")
namespace tandem {
namespace dense_avx2_code {

constexpr int kPrefetchBytes = 2048;
#include "vector_avx2.h"
#include "codes_avx2.h"
#include "dense_table.h"

}  // namespace dense_avx2_code

const DenseKernels* dense_avx2() { return dense_avx2_code::dense_table("avx2"); }

}  // namespace tandem

TANDEM_TARGET_END

#else

namespace tandem {
const DenseKernels* dense_avx2() { return nullptr; }
}  // namespace tandem

#endif
