// The products of one instruction set, included once by each of them inside its namespace and target.
#include "tile_kernel.h"
#include "quantise_kernel.h"

#define TANDEM_EACH_ROWS(function, first)                                                                     \
    {                                                                                                          \
        function<first, 1>, function<first, 2>, function<first, 3>, function<first, 4>, function<first, 5>,    \
            function<first, 6>, function<first, 7>, function<first, 8>                                         \
    }

inline const DenseKernels* dense_table(const char* name) {
    static const DenseKernels kernels = {
        name,
        {TANDEM_EACH_ROWS(multiply_floats, float), TANDEM_EACH_ROWS(multiply_floats, float16),
         TANDEM_EACH_ROWS(multiply_floats, bfloat16), TANDEM_EACH_ROWS(multiply_integers, WeightFormat::q4_0),
         TANDEM_EACH_ROWS(multiply_integers, WeightFormat::q4_1),
         TANDEM_EACH_ROWS(multiply_integers, WeightFormat::q5_0),
         TANDEM_EACH_ROWS(multiply_integers, WeightFormat::q5_1),
         TANDEM_EACH_ROWS(multiply_integers, WeightFormat::q8_0),
         TANDEM_EACH_ROWS(multiply_integers, WeightFormat::q4_k),
         TANDEM_EACH_ROWS(multiply_integers, WeightFormat::q5_k),
         TANDEM_EACH_ROWS(multiply_integers, WeightFormat::q6_k)},
        quantise,
    };
    return &kernels;
}

#undef TANDEM_EACH_ROWS
