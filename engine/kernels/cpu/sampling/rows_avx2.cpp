#include <algorithm>
#include <cstring>
#include <limits>

#include "row_kernels.h"
#include "../target.h"

#if defined(__x86_64__)

TANDEM_TARGET_BEGIN("avx2,fma")
namespace tandem {
namespace rows_avx2 {

#define TANDEM_VECTOR_BYTES 32
#include "row_table.h"

}  // namespace rows_avx2

const RowKernels* avx2_row_kernels() { return rows_avx2::row_table("avx2"); }

}  // namespace tandem
TANDEM_TARGET_END

#else

namespace tandem {
const RowKernels* avx2_row_kernels() { return nullptr; }
}  // namespace tandem

#endif
