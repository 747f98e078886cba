// Codes of weights and their products with activations, sixteen outputs at a time.

#define TANDEM_UNROLL _Pragma("GCC unroll 8")  // so that arrays of vectors are registers
using Codes = __m512i;
using Ints = __m512i;

inline Codes load_codes(const char* p) { return _mm512_loadu_si512(p); }
inline Codes low_bits(Codes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
inline Codes high_bits(Codes a) { return low_bits(_mm512_srli_epi16(a, 4)); }
// Adds the bits of `plane` that are under the mask when shifted to the left, or to the right if negative.
template <int Left, int Mask>
inline Codes add_bits(Codes a, Codes plane) {
    if (Left > 0) plane = _mm512_slli_epi16(plane, unsigned(Left & 15));
    if (Left < 0) plane = _mm512_srli_epi16(plane, unsigned(-Left & 15));
    return _mm512_ternarylogic_epi32(a, plane, _mm512_set1_epi8(Mask), 0xf8);  // a | (plane & mask)
}

inline Ints all_ints(int32_t value) { return _mm512_set1_epi32(value); }
inline Vec floats_of(Ints a) { return _mm512_cvtepi32_ps(a); }

// Whether codes of 8 bits are multiplied as they are, so that sums begin at -128 times that of the activations.
constexpr bool kUnsignedCodes = true;

// Adds the products of groups First .. Last - 1 to each row's sums. Rows take turns: a sum waits for the one before.
template <int Bits, int First, int Last, int Rows>
inline void add_products(Ints (&sums)[Rows], const Codes (&codes)[kGroups], const ActivationBlock* rows) {
    TANDEM_UNROLL
    for (int g = First; g < Last; ++g) {
        TANDEM_UNROLL
        for (int r = 0; r < Rows; ++r) {
            int32_t four;
            std::memcpy(&four, rows[r].codes + 4 * g, 4);
            sums[r] = _mm512_dpbusd_epi32(sums[r], codes[g], _mm512_set1_epi32(four));
        }
    }
}

inline void store_codes(int8_t* p, Vec a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}
inline void load_pair(const bfloat16* p, Vec* first, Vec* second) {
    const __m512i pairs = _mm512_loadu_si512(p);
    *first = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    *second = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000u))));
}
