// The blocks of quantised weights in a GGUF file (ggml-quants.c), one row's at a time.
#pragma once

#include "weight_format.h"

namespace tandem {

// A super-block, or a block where there are none.
struct GgufBlock {
    uint16_t scale, minimum;  // float16
    uint8_t scales[16];       // of the blocks in a super-block, or of their halves; q6_k's are signed
    uint8_t minima[kMaxSuper];
    uint8_t codes[kMaxSuper * kBlockInputs];
};

void read_gguf_block(WeightFormat format, const char* bytes, GgufBlock& block);

}  // namespace tandem
