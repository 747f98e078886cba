#include <algorithm>
#include <cstring>
#include <limits>

#include "row_kernels.h"
#include "../target.h"

#if defined(__x86_64__)

TANDEM_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
namespace tandem {
namespace rows_avx512 {

#define TANDEM_VECTOR_BYTES 64
#include "row_table.h"

}  // namespace rows_avx512

const RowKernels* avx512_row_kernels() { return rows_avx512::row_table("avx512"); }

}  // namespace tandem
TANDEM_TARGET_END

#else

namespace tandem {
const RowKernels* avx512_row_kernels() { return nullptr; }
}  // namespace tandem

#endif
