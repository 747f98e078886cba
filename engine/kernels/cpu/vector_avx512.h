// Sixteen floats: AVX-512 F, BW, DQ, VL.

using Vec = __m512;
constexpr int W = 16;
constexpr int kHeadsTogether = 4;
constexpr int kRowBlock = 8;

inline Vec splat(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline Vec load(const bfloat16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline Vec load(const float16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec load(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec select_le(Vec a, Vec b, Vec yes, Vec no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LE_OQ), no, yes);
}
inline Vec scale_by_power(Vec p, Vec t) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
}
inline __m256 upper_half(Vec a) { return _mm512_maskz_extractf32x8_ps(__mmask8(-1), a, 1); }
inline float reduce_add(Vec a) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), upper_half(a));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
inline float reduce_max(Vec a) {
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a), upper_half(a));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
// Sums of W vectors, in two steps: four at a time, each 128-bit lane its part of the four; then the lanes of
// W / 4 of these.
inline Vec sum_four(const Vec* a) {
    const Vec ab = _mm512_add_ps(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1]));
    const Vec cd = _mm512_add_ps(_mm512_unpacklo_ps(a[2], a[3]), _mm512_unpackhi_ps(a[2], a[3]));
    return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)),
                         _mm512_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));
}
inline Vec sum_fours(const Vec* a) {
    const Vec ab = _mm512_add_ps(_mm512_shuffle_f32x4(a[0], a[1], 0x88), _mm512_shuffle_f32x4(a[0], a[1], 0xdd));
    const Vec cd = _mm512_add_ps(_mm512_shuffle_f32x4(a[2], a[3], 0x88), _mm512_shuffle_f32x4(a[2], a[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}
inline Vec count_from(float first) {
    const Vec counted = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_add_ps(_mm512_set1_ps(first), counted);
}
inline void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }

#define TANDEM_WORDS  // for stored.h
using Words = __m512i;
inline Words load_words(const char* p, int left) {
    return left >= W ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi32(__mmask16((1u << left) - 1u), p);
}
inline Words shift_left(Words a, int bits) { return _mm512_slli_epi32(a, unsigned(bits)); }
inline Words keep(Words a, uint32_t mask) { return _mm512_and_si512(a, _mm512_set1_epi32(int(mask))); }
inline Vec as_floats(Words a) { return _mm512_castsi512_ps(a); }
inline Vec to_floats(Words a) { return _mm512_cvtepi32_ps(a); }
// low, high = a0 b0 a1 b1 ...
inline void interleave(Vec a, Vec b, Vec* low, Vec* high) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *low = _mm512_permutex2var_ps(a, first, b);
    *high = _mm512_permutex2var_ps(a, _mm512_add_epi32(first, _mm512_set1_epi32(8)), b);
}
// The reverse: even and odd elements of low, high.
inline void separate(Vec low, Vec high, Vec* even, Vec* odd) {
    const __m512i first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(low, first, high);
    *odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(first, _mm512_set1_epi32(1)), high);
}
