#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels.h"
#include "target.h"

namespace tandem {
namespace scalar {

#define TANDEM_HEADS_TOGETHER 2
#include "vector_scalar.h"
#include "kernel_table.h"

}  // namespace scalar

const Kernels* scalar_kernels() { return scalar::kernel_table("scalar"); }

}  // namespace tandem
