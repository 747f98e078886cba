// What every instruction set implements of the products with weights.
#pragma once

#include <string>

#include "number_formats.h"
#include "weight_format.h"

namespace tandem {

constexpr int kGroupRows = 8;  // that are multiplied together

// 32 activations of one row as integers: value = scale * code, code = -127 .. 127. A block with something that is
// not finite has a scale that is no number, and so have all outputs of its row.
struct alignas(64) ActivationBlock {
    int8_t codes[kBlockInputs];
    float scale;
    float scaled_sum;   // scale * sum of codes
    int32_t start_8;    // -8 * sum of codes: where the sum of products with weights' codes starts, for an
    int32_t start_16;   // offset of 8, and so on
    int32_t start_128;
    int32_t start_32[2];  // of either half
    int32_t unused;
};
static_assert(sizeof(ActivationBlock) == 64);

// 16 activations of one row as they are.
struct alignas(64) ActivationLine {
    float values[kBlockInputs / 2];
};

// Some outputs, at most a tile, of at most kGroupRows rows.
struct TileSpan {
    const char* tile;
    int blocks;                     // of kBlockInputs, whole super-blocks
    const ActivationBlock* blocks_of_rows;  // [blocks][rows], for weights that are integers
    const ActivationLine* lines_of_rows;    // [2 * blocks][rows], for floats
    int outputs;
    const float* bias;              // null: none
    float* out;                     // of the first row
    ptrdiff_t out_stride;           // floats from a row to the next one
    bool prefetch;                  // the tile comes from memory, and so will the next one
};

struct DenseKernels {
    const char* name;
    // By index_of(format) and rows - 1. An output's operations and their order don't depend on the rows.
    void (*multiply[kWeightFormats][kGroupRows])(const TileSpan& span);
    // `count` activations, filled up with zeros, to blocks `stride` apart.
    void (*quantise)(const float* values, int count, ActivationBlock* blocks, ptrdiff_t stride);
};

// Null where the compiler or processor does not have the instruction set.
const DenseKernels* dense_scalar();
const DenseKernels* dense_avx2();
const DenseKernels* dense_avx512_vnni();
const DenseKernels* dense_neon();
const DenseKernels* dense_neon_dotprod();

// The best ones for an instruction set that available_kernels() names, or for "auto". Throws
// std::invalid_argument if there is none of that name here.
const DenseKernels& dense_kernels_named(const std::string& instruction_set);

}  // namespace tandem
