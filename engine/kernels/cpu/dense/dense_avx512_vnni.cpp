#include <cmath>
#include <cstring>
#include <type_traits>

#include "dense_kernels.h"
#include "target.h"

#if defined(__x86_64__)
#include <immintrin.h>

TANDEM_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
namespace tandem {
namespace dense_avx512_vnni_code {

constexpr int kPrefetchBytes = 2048;
#include "vector_avx512.h"
#include "codes_avx512_vnni.h"
#include "dense_table.h"

}  // namespace dense_avx512_vnni_code

const DenseKernels* dense_avx512_vnni() { return dense_avx512_vnni_code::dense_table("avx512_vnni"); }

}  // namespace tandem

TANDEM_TARGET_END

#else

namespace tandem {
const DenseKernels* dense_avx512_vnni() { return nullptr; }
}  // namespace tandem

#endif
