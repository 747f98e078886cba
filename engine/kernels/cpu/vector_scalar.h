// Four floats in plain C++: the portable vector, and the reference of the others.

struct Vec {
    float v[4];
};
constexpr int W = 4;
constexpr int kHeadsTogether = 2;
constexpr int kRowBlock = 4;

#define TANDEM_EACH(expression)                                                                               \
    Vec result;                                                                                                \
    for (int i = 0; i < 4; ++i) result.v[i] = (expression);                                                    \
    return result

inline Vec splat(float x) { TANDEM_EACH(x); }
inline Vec load(const float* p) { TANDEM_EACH(p[i]); }
inline Vec load(const bfloat16* p) { TANDEM_EACH(tandem::to_float(p[i])); }
inline Vec load(const float16* p) { TANDEM_EACH(tandem::to_float(p[i])); }
inline Vec load(const int8_t* p) { TANDEM_EACH(float(p[i])); }
inline void store(float* p, Vec a) {
    for (int i = 0; i < 4; ++i) p[i] = a.v[i];
}
inline Vec fma(Vec a, Vec b, Vec c) { TANDEM_EACH(a.v[i] * b.v[i] + c.v[i]); }
inline Vec add(Vec a, Vec b) { TANDEM_EACH(a.v[i] + b.v[i]); }
inline Vec sub(Vec a, Vec b) { TANDEM_EACH(a.v[i] - b.v[i]); }
inline Vec mul(Vec a, Vec b) { TANDEM_EACH(a.v[i] * b.v[i]); }
inline Vec div(Vec a, Vec b) { TANDEM_EACH(a.v[i] / b.v[i]); }
inline Vec max(Vec a, Vec b) { TANDEM_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline Vec min(Vec a, Vec b) { TANDEM_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline Vec select_le(Vec a, Vec b, Vec yes, Vec no) { TANDEM_EACH(a.v[i] <= b.v[i] ? yes.v[i] : no.v[i]); }
// p * 2^n, n being the integer in the low bits of t = n + 1.5 * 2^23.
inline Vec scale_by_power(Vec p, Vec t) {
    Vec result;
    for (int i = 0; i < 4; ++i) {
        uint32_t exponent, bits;
        std::memcpy(&exponent, &t.v[i], 4);
        std::memcpy(&bits, &p.v[i], 4);
        bits += exponent << 23;
        std::memcpy(&result.v[i], &bits, 4);
    }
    return result;
}
inline float reduce_add(Vec a) { return (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]); }
inline float reduce_max(Vec a) {
    const Vec b = max(a, Vec{{a.v[2], a.v[3], a.v[0], a.v[1]}});
    return b.v[0] > b.v[1] ? b.v[0] : b.v[1];
}
// Sums of W vectors, in two steps: four at a time, then W / 4 of these.
inline Vec sum_four(const Vec* a) { TANDEM_EACH(reduce_add(a[i])); }
inline Vec sum_fours(const Vec* a) { return a[0]; }
inline Vec count_from(float first) { TANDEM_EACH(first + float(i)); }
inline void prefetch(const char* p) {
#if defined(__GNUC__)
    __builtin_prefetch(p);
#else
    (void)p;
#endif
}
#undef TANDEM_EACH
