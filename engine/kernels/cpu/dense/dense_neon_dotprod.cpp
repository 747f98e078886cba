#include <cmath>
#include <cstring>
#include <type_traits>

#include "dense_kernels.h"
#include "target.h"

#if defined(__aarch64__)
#include <arm_neon.h>

TANDEM_TARGET_BEGIN("arch=armv8.2-a+dotprod")
namespace tandem {
namespace dense_neon_dotprod_code {

constexpr int kPrefetchBytes = 2048;
#define TANDEM_NEON_DOTPROD
#include "vector_neon.h"
#include "codes_neon.h"
#include "dense_table.h"

}  // namespace dense_neon_dotprod_code

const DenseKernels* dense_neon_dotprod() { return dense_neon_dotprod_code::dense_table("neon_dotprod"); }

}  // namespace tandem

TANDEM_TARGET_END

#else

namespace tandem {
const DenseKernels* dense_neon_dotprod() { return nullptr; }
}  // namespace tandem

#endif
