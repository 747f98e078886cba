#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels.h"
#include "target.h"

#if defined(__aarch64__)
#include <arm_neon.h>

namespace tandem {
namespace neon {

#define TANDEM_HEADS_TOGETHER 4
#include "vector_neon.h"
#include "kernel_table.h"

}  // namespace neon

const Kernels* neon_kernels() { return neon::kernel_table("neon"); }

}  // namespace tandem

#else

namespace tandem {
const Kernels* neon_kernels() { return nullptr; }
}  // namespace tandem

#endif
