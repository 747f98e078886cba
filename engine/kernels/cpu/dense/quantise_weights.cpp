// Rounding of float weights to integer blocks, the way GGUF files have them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "number_formats.h"
#include "pack.h"

namespace tandem {

namespace {

uint16_t half_of(float value) {
    float16 half;
    from_float(value, &half);
    return half.bits;
}

float as_half(float value) { return to_float(float16{half_of(value)}); }

// Something that is not finite is as good as any number here: the scale tells of it.
int rounded(float value, int low, int high) {
    if (!(value > float(low))) return low;
    return value < float(high) ? int(std::lrint(value)) : high;
}

float inverse(float scale) { return std::isfinite(scale) && scale != 0.0f ? 1.0f / scale : 0.0f; }

struct Range {
    float low, high, poison;  // poison: 0, or NaN if something is not finite
};

Range range_of(const float* values) {
    Range range{values[0], values[0], 0.0f};
    for (int i = 0; i < kBlockInputs; ++i) {
        range.low = std::min(range.low, values[i]);
        range.high = std::max(range.high, values[i]);
        range.poison += values[i] * 0.0f;
    }
    return range;
}

void to_nibbles(const uint8_t* codes, char* bytes) {
    for (int i = 0; i < 16; ++i) bytes[i] = char(codes[i] | codes[i + 16] << 4);
}

void quantise_q8_0(const float* values, char* block) {
    const Range range = range_of(values);
    const float scale = std::max(range.high, -range.low) / 127.0f + range.poison, factor = inverse(scale);
    const uint16_t half = half_of(scale);
    std::memcpy(block, &half, 2);
    for (int i = 0; i < kBlockInputs; ++i) block[2 + i] = char(rounded(values[i] * factor, -127, 127));
}

// The largest value has the code 0, which is -8: the one without a counterpart.
void quantise_q4_0(const float* values, char* block) {
    const Range range = range_of(values);
    const float largest = range.high > -range.low ? range.high : range.low;
    const float scale = largest / -8.0f + range.poison, factor = inverse(scale);
    const uint16_t half = half_of(scale);
    uint8_t codes[kBlockInputs];
    for (int i = 0; i < kBlockInputs; ++i) codes[i] = uint8_t(rounded(values[i] * factor + 8.0f, 0, 15));
    std::memcpy(block, &half, 2);
    to_nibbles(codes, block + 2);
}

// Codes are chosen for the scale and minimum as they are stored, which gguf's own routine does not do.
void quantise_q4_1(const float* values, char* block) {
    const Range range = range_of(values);
    const float scale = as_half((range.high - range.low) / 15.0f + range.poison), minimum = as_half(range.low);
    const float factor = inverse(scale);
    const uint16_t halves[2] = {half_of(scale), half_of(minimum)};
    uint8_t codes[kBlockInputs];
    for (int i = 0; i < kBlockInputs; ++i) codes[i] = uint8_t(rounded((values[i] - minimum) * factor, 0, 15));
    std::memcpy(block, halves, 4);
    to_nibbles(codes, block + 4);
}

}  // namespace

void quantise_weights(WeightFormat format, const float* values, size_t count, void* blocks) {
    void (*quantise)(const float*, char*) = nullptr;
    if (format == WeightFormat::q8_0) quantise = quantise_q8_0;
    if (format == WeightFormat::q4_0) quantise = quantise_q4_0;
    if (format == WeightFormat::q4_1) quantise = quantise_q4_1;
    if (!quantise) throw std::invalid_argument("weights are rounded to q8_0, q4_0 or q4_1 only");
    if (count % kBlockInputs != 0) throw std::invalid_argument("weights are rounded in blocks of 32");
    char* block = static_cast<char*>(blocks);
    for (size_t i = 0; i < count; i += kBlockInputs, block += layout_of(format).source_bytes)
        quantise(values + i, block);
}

}  // namespace tandem
