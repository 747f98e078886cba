// Pairs of bfloat16 multiplied natively: 32 elements of a dot product in one instruction. Denormal inputs
// count as zero.

struct BFloat16Dot {
    using Query = bfloat16;
    using Key = bfloat16;
    using Loaded = __m512bh;
    static constexpr int step = 32;
    static Loaded load_pairs(const void* p, int left) {
        const __m512i bits = left >= step ? _mm512_loadu_si512(p)
                                          : _mm512_zextsi256_si512(
                                                _mm256_loadu_si256(static_cast<const __m256i*>(p)));
        return reinterpret_cast<Loaded>(bits);
    }
    static Loaded load_query(const Query* p, int left) { return load_pairs(p, left); }
    static Loaded load_key(const char* row, int d, int dim) {
        return load_pairs(row + d * ptrdiff_t(sizeof(bfloat16)), dim - d);
    }
    static Vec multiply(Loaded a, Loaded b, Vec sum) { return _mm512_dpbf16_ps(sum, a, b); }
};
