// The kernels of one instruction set, included once by each of them inside its namespace and target.
#include "vector_math.h"
#include "stored.h"
#include "convert_kernel.h"
#include "decode_kernel.h"
#include "prefill_kernel.h"
#include "step/step_kernel.h"

#ifndef TANDEM_BFLOAT16_DOT
#define TANDEM_BFLOAT16_DOT nullptr
#endif

inline const Kernels* kernel_table(const char* name) {
    static const Kernels kernels = {
        name,
        {decode<FloatDot<float>>, decode<FloatDot<bfloat16>>, decode<FloatDot<float16>>,
         decode<FloatDot<int8_t>>},
        TANDEM_BFLOAT16_DOT,
        {prefill<float>, prefill<bfloat16>, prefill<float16>, prefill<int8_t>},
        {merge<float>, merge<bfloat16>, merge<float16>, merge<int8_t>},
        {append<float>, append<bfloat16>, append<float16>, append_int8},
        sum,
        {rms_norm, add_row, scale_row, rotate, {gate_row<Silu>, gate_row<GeluTanh>}},
    };
    return &kernels;
}
