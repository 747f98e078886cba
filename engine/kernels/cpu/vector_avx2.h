// Eight floats: AVX2, FMA, F16C.

using Vec = __m256;
constexpr int W = 8;
constexpr int kHeadsTogether = 2;
constexpr int kRowBlock = 4;

inline Vec splat(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline Vec load(const bfloat16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Vec load(const float16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Vec load(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec select_le(Vec a, Vec b, Vec yes, Vec no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LE_OQ));
}
inline Vec scale_by_power(Vec p, Vec t) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
}
inline float reduce_add(Vec a) {
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
inline float reduce_max(Vec a) {
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
// Sums of W vectors, in two steps: four at a time, each 128-bit lane its part of the four; then the lanes of
// W / 4 of these.
inline Vec sum_four(const Vec* a) {
    const Vec ab = _mm256_add_ps(_mm256_unpacklo_ps(a[0], a[1]), _mm256_unpackhi_ps(a[0], a[1]));
    const Vec cd = _mm256_add_ps(_mm256_unpacklo_ps(a[2], a[3]), _mm256_unpackhi_ps(a[2], a[3]));
    return _mm256_add_ps(_mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)),
                         _mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));
}
inline Vec sum_fours(const Vec* a) {
    return _mm256_add_ps(_mm256_permute2f128_ps(a[0], a[1], 0x20), _mm256_permute2f128_ps(a[0], a[1], 0x31));
}
inline Vec count_from(float first) {
    return _mm256_add_ps(_mm256_set1_ps(first), _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7));
}
inline void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }

#define TANDEM_WORDS  // for stored.h
using Words = __m256i;
inline Words load_words(const char* p, int left) {
    if (left >= W) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));  // half a vector
}
inline Words shift_left(Words a, int bits) { return _mm256_slli_epi32(a, bits); }
inline Words keep(Words a, uint32_t mask) { return _mm256_and_si256(a, _mm256_set1_epi32(int(mask))); }
inline Vec as_floats(Words a) { return _mm256_castsi256_ps(a); }
inline Vec to_floats(Words a) { return _mm256_cvtepi32_ps(a); }
// low, high = a0 b0 a1 b1 ...
inline void interleave(Vec a, Vec b, Vec* low, Vec* high) {
    const Vec l = _mm256_unpacklo_ps(a, b), h = _mm256_unpackhi_ps(a, b);
    *low = _mm256_permute2f128_ps(l, h, 0x20);
    *high = _mm256_permute2f128_ps(l, h, 0x31);
}
// The reverse: even and odd elements of low, high.
inline void separate(Vec low, Vec high, Vec* even, Vec* odd) {
    const Vec l = _mm256_permute2f128_ps(low, high, 0x20), h = _mm256_permute2f128_ps(low, high, 0x31);
    *even = _mm256_shuffle_ps(l, h, _MM_SHUFFLE(2, 0, 2, 0));
    *odd = _mm256_shuffle_ps(l, h, _MM_SHUFFLE(3, 1, 3, 1));
}
