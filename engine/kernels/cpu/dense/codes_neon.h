// Codes of weights and their products with activations, four outputs at a time.

#define TANDEM_UNROLL _Pragma("GCC unroll 8")  // so that arrays of vectors are registers
using Codes = uint8x16_t;
using Ints = int32x4_t;

inline Codes load_codes(const char* p) { return vld1q_u8(reinterpret_cast<const uint8_t*>(p)); }
inline Codes low_bits(Codes a) { return vandq_u8(a, vdupq_n_u8(15)); }
inline Codes high_bits(Codes a) { return vshrq_n_u8(a, 4); }
// Adds the bits of `plane` that are under the mask when shifted to the left, or to the right if negative.
template <int Left, int Mask>
inline Codes add_bits(Codes a, Codes plane) {
    const Codes shifted = vshlq_u8(plane, vdupq_n_s8(Left));
    return vorrq_u8(a, vandq_u8(shifted, vdupq_n_u8(Mask)));
}

inline Ints all_ints(int32_t value) { return vdupq_n_s32(value); }
inline Vec floats_of(Ints a) { return vcvtq_f32_s32(a); }

// Whether codes of 8 bits are multiplied as they are, so that sums begin at -128 times that of the activations.
constexpr bool kUnsignedCodes = false;

inline Ints add_four(Ints sums, int8x16_t codes, int8x16_t activations) {
#if defined(TANDEM_NEON_DOTPROD)
    return vdotq_s32(sums, codes, activations);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(activations));
    const int16x8_t high = vmull_high_s8(codes, activations);
    return vaddq_s32(sums, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}

// Sums plus the products of groups First .. Last - 1.
template <int Bits, int First, int Last>
inline Ints row_products(Ints sums, const Codes (&codes)[kGroups], const int8_t* activations) {
    for (int g = First; g < Last; ++g) {
        int32_t four;
        std::memcpy(&four, activations + 4 * g, 4);
        const Codes code = Bits == 8 ? veorq_u8(codes[g], vdupq_n_u8(0x80)) : codes[g];
        sums = add_four(sums, vreinterpretq_s8_u8(code), vreinterpretq_s8_s32(vdupq_n_s32(four)));
    }
    return sums;
}

template <int Bits, int First, int Last, int Rows>
inline void add_products(Ints (&sums)[Rows], const Codes (&codes)[kGroups], const ActivationBlock* rows) {
    for (int r = 0; r < Rows; ++r) sums[r] = row_products<Bits, First, Last>(sums[r], codes, rows[r].codes);
}

inline void store_codes(int8_t* p, Vec a) {
    const int16x4_t words = vmovn_s32(vcvtnq_s32_f32(a));
    const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
    const int32_t four = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
    std::memcpy(p, &four, 4);
}
inline void load_pair(const bfloat16* p, Vec* first, Vec* second) {
    const uint32x4_t pairs = vreinterpretq_u32_u16(vld1q_u16(&p->bits));
    *first = vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
    *second = vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u)));
}
