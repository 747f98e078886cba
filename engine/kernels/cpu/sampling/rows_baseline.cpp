// What every processor of an architecture has: SSE2, NEON.
#include <algorithm>
#include <cstring>
#include <limits>

#include "row_kernels.h"

namespace tandem {
namespace rows_baseline {

#define TANDEM_VECTOR_BYTES 16
#include "row_table.h"

}  // namespace rows_baseline

const RowKernels* baseline_row_kernels() { return rows_baseline::row_table("baseline"); }

}  // namespace tandem
