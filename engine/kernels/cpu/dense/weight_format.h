// The number formats of weights, and how a matrix of each is laid out for the products.
//
// Outputs go in *tiles* of 16. A tile is one stream over blocks of 32 inputs. A block of integers holds groups of
// 4 inputs, [group][16 outputs][4 inputs]: a 64-byte line a group, one register of AVX-512. What has fewer bits
// than 8 is split up: line g of four holds the low 4 bits of group g (lower half of each byte) and g + 4. Fifth
// bits are one more line, bit g for group g; fifth and sixth are two lines, bits 2 (g % 4) of line g / 4 for group
// g. Then come the block's scales and minima, each [16 outputs]: float16, or bytes in a super-block, whose
// header are float16 factors of them. A block of floats is [pair of inputs][2 inputs][16 outputs], for bfloat16
// [pair of inputs][16 outputs][2 inputs]. Outputs and inputs that fill up a tile and a block are zero.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

constexpr int kTileOutputs = 16;
constexpr int kBlockInputs = 32;
constexpr int kGroups = kBlockInputs / 4;
constexpr int kMaxSuper = 8;

// Numbered like GGUF's types.
enum class WeightFormat : int {
    float32 = 0,
    float16 = 1,
    q4_0 = 2,
    q4_1 = 3,
    q5_0 = 6,
    q5_1 = 7,
    q8_0 = 8,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    bfloat16 = 30,
};

// An integer weight is scale * (code - offset), plus or (K formats) minus a minimum; codes are not negative.
struct WeightLayout {
    bool integers;
    int bits;
    int super = 1;         // blocks of a super-block
    int offset = 0;
    bool minima = false;
    int scales = 1;        // of a block; 2 are for 16 inputs each
    int source_bytes = 0;  // of a super-block of one row in a GGUF file; of floats, of a block

    constexpr int line_bytes() const { return kBlockInputs * kTileOutputs * bits / 8; }
    constexpr int scale_bytes() const {
        return integers ? kTileOutputs * (scales + int(minima)) * (super > 1 ? 1 : 2) : 0;
    }
    constexpr int block_bytes() const { return line_bytes() + scale_bytes(); }
    constexpr int header_bytes() const { return super > 1 ? 2 * kTileOutputs * (1 + int(minima)) : 0; }
    constexpr int super_bytes() const { return header_bytes() + super * block_bytes(); }
    constexpr int super_inputs() const { return super * kBlockInputs; }
};

// Without integers or bits for a number that is no format.
constexpr WeightLayout layout_of(WeightFormat format) {
    switch (format) {
        case WeightFormat::float32: return {false, 32, 1, 0, false, 0, 128};
        case WeightFormat::float16: return {false, 16, 1, 0, false, 0, 64};
        case WeightFormat::bfloat16: return {false, 16, 1, 0, false, 0, 64};
        case WeightFormat::q4_0: return {true, 4, 1, 8, false, 1, 18};
        case WeightFormat::q4_1: return {true, 4, 1, 0, true, 1, 20};
        case WeightFormat::q5_0: return {true, 5, 1, 16, false, 1, 22};
        case WeightFormat::q5_1: return {true, 5, 1, 0, true, 1, 24};
        case WeightFormat::q8_0: return {true, 8, 1, 128, false, 1, 34};
        case WeightFormat::q4_k: return {true, 4, 8, 0, true, 1, 144};
        case WeightFormat::q5_k: return {true, 5, 8, 0, true, 1, 176};
        case WeightFormat::q6_k: return {true, 6, 8, 32, false, 2, 210};
    }
    return {false, 0};
}

// Place in the table of kernels.
constexpr int kWeightFormats = 11;
constexpr int index_of(WeightFormat format) {
    switch (format) {
        case WeightFormat::float32: return 0;
        case WeightFormat::float16: return 1;
        case WeightFormat::bfloat16: return 2;
        case WeightFormat::q4_0: return 3;
        case WeightFormat::q4_1: return 4;
        case WeightFormat::q5_0: return 5;
        case WeightFormat::q5_1: return 6;
        case WeightFormat::q8_0: return 7;
        case WeightFormat::q4_k: return 8;
        case WeightFormat::q5_k: return 9;
        case WeightFormat::q6_k: return 10;
    }
    return -1;
}

}  // namespace tandem
