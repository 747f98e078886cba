#include <cmath>
#include <cstring>
#include <type_traits>

#include "dense_kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>

namespace tandem {
namespace dense_neon_code {

constexpr int kPrefetchBytes = 2048;
#include "vector_neon.h"
#include "codes_neon.h"
#include "dense_table.h"

}  // namespace dense_neon_code

const DenseKernels* dense_neon() { return dense_neon_code::dense_table("neon"); }

}  // namespace tandem

#else

namespace tandem {
const DenseKernels* dense_neon() { return nullptr; }
}  // namespace tandem

#endif
