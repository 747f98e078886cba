#include <cmath>
#include <cstring>
#include <type_traits>

#include "dense_kernels.h"

namespace tandem {
namespace dense_scalar_code {

constexpr int kPrefetchBytes = 2048;
#include "vector_scalar.h"
#include "codes_scalar.h"
#include "dense_table.h"

}  // namespace dense_scalar_code

const DenseKernels* dense_scalar() { return dense_scalar_code::dense_table("scalar"); }

}  // namespace tandem
