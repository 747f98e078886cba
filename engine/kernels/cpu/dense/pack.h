// From rows of a file or of a tensor to tiles, and back to floats.
#pragma once

#include "weight_format.h"

namespace tandem {

// Puts a row of `blocks` blocks into place `output` of its tile. The tile's padding is zero before. Of
// floats there are `inputs`; integers fill all blocks.
void pack_row(WeightFormat format, const void* row, int inputs, int blocks, int output, char* tile);

// The floats that output `output` of a tile stands for, as gguf's own routines give them.
void unpack_row(WeightFormat format, const char* tile, int output, int inputs, float* out);

// Rounds `count` floats, a multiple of 32, to blocks of q8_0, q4_0 or q4_1 as a GGUF file has them. Throws
// std::invalid_argument for another format. What is not finite makes a block that stands for NaN or infinities.
void quantise_weights(WeightFormat format, const float* values, size_t count, void* blocks);

}  // namespace tandem
