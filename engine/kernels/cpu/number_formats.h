// Storage types of keys and values, and their scalar conversions.
#pragma once

#include <cstdint>
#include <cstring>

namespace tandem {

enum class Format : int { float32 = 0, bfloat16 = 1, float16 = 2, int8 = 3 };
constexpr int kFormats = 4;

struct bfloat16 {
    uint16_t bits;
};
struct float16 {
    uint16_t bits;
};

constexpr int size_of(Format format) {
    return format == Format::float32 ? 4 : format == Format::int8 ? 1 : 2;
}

inline float to_float(float value) { return value; }

inline float to_float(bfloat16 value) {
    const uint32_t bits = uint32_t{value.bits} << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}

inline float to_float(float16 value) {
    const uint32_t sign = uint32_t(value.bits & 0x8000u) << 16, magnitude = value.bits & 0x7fffu;
    uint32_t bits;
    if (magnitude >= 0x7c00u) {
        bits = 0x7f800000u | (magnitude & 0x3ffu) << 13;  // infinite or not a number
    } else if (magnitude >= 0x400u) {
        bits = (magnitude << 13) + (112u << 23);
    } else {
        const float tiny = float(magnitude) * 0x1p-24f;  // subnormal or zero
        std::memcpy(&bits, &tiny, 4);
    }
    bits |= sign;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}

// Round to nearest, ties to even, as hardware does.
inline void from_float(float value, float* out) { *out = value; }

inline void from_float(float value, bfloat16* out) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    out->bits = uint16_t(nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline void from_float(float value, float16* out) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00u;
    } else if (magnitude >= 0x477ff000u) {
        half = 0x7c00u;  // rounds beyond the largest finite number
    } else if (magnitude >= 0x38800000u) {
        half = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    } else {
        float shifted;  // adding 2^-1 leaves the subnormal's 10 bits, rounded, at the end
        std::memcpy(&shifted, &magnitude, 4);
        shifted += 0.5f;
        std::memcpy(&half, &shifted, 4);
        half &= 0xffffu;
    }
    out->bits = uint16_t(sign | half);
}

}  // namespace tandem
