// Pairs of bfloat16 multiplied natively: 32 elements of a dot product in one instruction. Denormal inputs
// count as zero.

struct BFloat16Dot {
    using Key = bfloat16;
    using Raw = Words;
    static constexpr int step = 32;
    static Raw load_key(const char* p, int left) { return load_words(p, left / 2); }
    template <int Keys, int Heads>
    static void multiply(const Raw (&keys)[Keys], const float* queries, int stride, Vec (&sums)[Heads][Keys]) {
        for (int h = 0; h < Heads; ++h) {
            const Words query = _mm512_loadu_si512(queries + h * stride);
            for (int i = 0; i < Keys; ++i) sums[h][i] = _mm512_dpbf16_ps(sums[h][i], __m512bh(keys[i]), __m512bh(query));
        }
    }
    // Keeps the queries as they are: bfloat16, zero beyond dim; a chunk takes half of its room.
    static void arrange(const void* queries, Format, int dim, float* out) {
        const char* from = static_cast<const char*>(queries);
        for (int d = 0; d < dim; d += step)
            _mm512_storeu_si512(out + d, load_key(from + d * int(sizeof(bfloat16)), dim - d));
    }
};
