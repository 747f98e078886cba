// Codes of weights and their products with activations, eight outputs at a time.

#define TANDEM_UNROLL _Pragma("GCC unroll 8")  // so that arrays of vectors are registers
using Codes = __m256i;
using Ints = __m256i;

inline Codes load_codes(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Codes low_bits(Codes a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
inline Codes high_bits(Codes a) { return low_bits(_mm256_srli_epi16(a, 4)); }
// Adds the bits of `plane` that are under the mask when shifted to the left, or to the right if negative.
template <int Left, int Mask>
inline Codes add_bits(Codes a, Codes plane) {
    if (Left > 0) plane = _mm256_slli_epi16(plane, Left & 15);
    if (Left < 0) plane = _mm256_srli_epi16(plane, -Left & 15);
    return _mm256_or_si256(a, _mm256_and_si256(plane, _mm256_set1_epi8(Mask)));
}

inline Ints all_ints(int32_t value) { return _mm256_set1_epi32(value); }
inline Vec floats_of(Ints a) { return _mm256_cvtepi32_ps(a); }

// Whether codes of 8 bits are multiplied as they are, so that sums begin at -128 times that of the activations.
constexpr bool kUnsignedCodes = false;

inline __m256i four_activations(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
}

// Sums plus the products of groups First .. Last - 1. Sums of 16 bits hold the products of two inputs, and of so many
// groups: 2 * 127 * 15 * 8, 2 * 127 * 31 * 4, 2 * 127 * 63 * 2, 2 * 127 * 128 < 2^15.
template <int Bits, int First, int Last>
inline Ints row_products(Ints sums, const Codes (&codes)[kGroups], const int8_t* activations) {
    constexpr int together = Bits == 4 ? 8 : Bits == 5 ? 4 : Bits == 6 ? 2 : 1;
    const __m256i ones = _mm256_set1_epi16(1), middle = _mm256_set1_epi8(char(0x80));
    for (int first = First; first < Last; first += together) {
        __m256i words = _mm256_setzero_si256();
        for (int g = first; g < first + together && g < Last; ++g) {
            __m256i four = four_activations(activations + 4 * g), code = codes[g];
            if (Bits == 8) {  // the sign goes to the activation
                code = _mm256_xor_si256(code, middle);
                four = _mm256_sign_epi8(four, code);
                code = _mm256_abs_epi8(code);
            }
            words = _mm256_add_epi16(words, _mm256_maddubs_epi16(code, four));
        }
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(words, ones));
    }
    return sums;
}

template <int Bits, int First, int Last, int Rows>
inline void add_products(Ints (&sums)[Rows], const Codes (&codes)[kGroups], const ActivationBlock* rows) {
    for (int r = 0; r < Rows; ++r) sums[r] = row_products<Bits, First, Last>(sums[r], codes, rows[r].codes);
}

inline void store_codes(int8_t* p, Vec a) {
    const __m256i ints = _mm256_cvtps_epi32(a);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
inline void load_pair(const bfloat16* p, Vec* first, Vec* second) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    *first = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    *second = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000u))));
}
