#include "gguf_blocks.h"

#include <cstring>

namespace tandem {

namespace {

uint16_t half_at(const char* bytes) {
    uint16_t bits;
    std::memcpy(&bits, bytes, 2);
    return bits;
}

const uint8_t* unsigned_at(const char* bytes) { return reinterpret_cast<const uint8_t*>(bytes); }

// 16 bytes: the first half of the block in their lower halves.
void read_nibbles(const uint8_t* bytes, uint8_t* codes) {
    for (int i = 0; i < 16; ++i) {
        codes[i] = bytes[i] & 15;
        codes[i + 16] = bytes[i] >> 4;
    }
}

void add_fifth_bits(const uint8_t* bits, uint8_t* codes) {
    for (int i = 0; i < kBlockInputs; ++i) codes[i] |= uint8_t((bits[i / 8] >> i % 8 & 1) << 4);
}

// 12 bytes with 6-bit scales and minima of 8 blocks.
void read_six_bits(const uint8_t* packed, GgufBlock& block) {
    for (int i = 0; i < 4; ++i) {
        block.scales[i] = packed[i] & 63;
        block.minima[i] = packed[i + 4] & 63;
        block.scales[i + 4] = uint8_t((packed[i + 8] & 15) | packed[i] >> 6 << 4);
        block.minima[i + 4] = uint8_t(packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4);
    }
}

// 32 bytes hold two blocks: the first one in their lower halves.
void read_pairs(const uint8_t* bytes, uint8_t* codes) {
    for (int pair = 0; pair < 4; ++pair, bytes += 32, codes += 64) {
        for (int i = 0; i < 32; ++i) {
            codes[i] = bytes[i] & 15;
            codes[i + 32] = bytes[i] >> 4;
        }
    }
}

void read_q4_k(const char* bytes, GgufBlock& block) {
    block.scale = half_at(bytes);
    block.minimum = half_at(bytes + 2);
    read_six_bits(unsigned_at(bytes + 4), block);
    read_pairs(unsigned_at(bytes + 16), block.codes);
}

void read_q5_k(const char* bytes, GgufBlock& block) {
    block.scale = half_at(bytes);
    block.minimum = half_at(bytes + 2);
    read_six_bits(unsigned_at(bytes + 4), block);
    read_pairs(unsigned_at(bytes + 48), block.codes);
    const uint8_t* const fifth = unsigned_at(bytes + 16);
    for (int i = 0; i < 256; ++i) block.codes[i] |= uint8_t((fifth[i % 32] >> i / 32 & 1) << 4);
}

void read_q6_k(const char* bytes, GgufBlock& block) {
    const uint8_t *low = unsigned_at(bytes), *high = unsigned_at(bytes + 128);
    for (int i = 0; i < 256; ++i) {  // halves of 128: two blocks in lower halves of bytes, two in upper ones
        const int half = i / 128, quarter = i % 128 / 32, in_block = i % 32;
        const int nibble = low[64 * half + quarter % 2 * 32 + in_block] >> (quarter < 2 ? 0 : 4) & 15;
        block.codes[i] = uint8_t(nibble | (high[32 * half + in_block] >> 2 * quarter & 3) << 4);
    }
    std::memcpy(block.scales, bytes + 192, 16);
    block.scale = half_at(bytes + 208);
}

}  // namespace

void read_gguf_block(WeightFormat format, const char* bytes, GgufBlock& block) {
    block.scale = half_at(bytes);
    switch (format) {
        case WeightFormat::q4_0: return read_nibbles(unsigned_at(bytes + 2), block.codes);
        case WeightFormat::q4_1:
            block.minimum = half_at(bytes + 2);
            return read_nibbles(unsigned_at(bytes + 4), block.codes);
        case WeightFormat::q5_0:
            read_nibbles(unsigned_at(bytes + 6), block.codes);
            return add_fifth_bits(unsigned_at(bytes + 2), block.codes);
        case WeightFormat::q5_1:
            block.minimum = half_at(bytes + 2);
            read_nibbles(unsigned_at(bytes + 8), block.codes);
            return add_fifth_bits(unsigned_at(bytes + 4), block.codes);
        case WeightFormat::q8_0:
            for (int i = 0; i < kBlockInputs; ++i) block.codes[i] = unsigned_at(bytes + 2)[i] ^ 0x80;
            return;
        case WeightFormat::q4_k: return read_q4_k(bytes, block);
        case WeightFormat::q5_k: return read_q5_k(bytes, block);
        case WeightFormat::q6_k: return read_q6_k(bytes, block);
        default: return;  // floats are no blocks
    }
}

}  // namespace tandem
