// The elementwise part of a layer. Widths need not be multiples of a vector.

inline Vec load_part(const float* p, int left) {
    if (left >= W) return load(p);
    alignas(64) float part[W] = {};
    std::memcpy(part, p, sizeof(float) * size_t(left));
    return load(part);
}

inline void store_part(float* p, Vec a, int left) {
    if (left >= W) return store(p, a);
    alignas(64) float part[W];
    store(part, a);
    std::memcpy(p, part, sizeof(float) * size_t(left));
}

inline float sum_of_squares(const float* x, int width) {
    constexpr int kSums = 4;  // independent, so that additions overlap
    Vec sums[kSums];
    for (Vec& sum : sums) sum = splat(0.0f);
    int i = 0;
    for (; i + kSums * W <= width; i += kSums * W) {
        for (int k = 0; k < kSums; ++k) {
            const Vec a = load(x + i + k * W);
            sums[k] = fma(a, a, sums[k]);
        }
    }
    for (; i < width; i += W) {
        const Vec a = load_part(x + i, width - i);
        sums[0] = fma(a, a, sums[0]);
    }
    return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

inline void rms_norm(const float* x, const float* weight, float eps, int width, float* out) {
    const Vec factor = splat(1.0f / std::sqrt(sum_of_squares(x, width) / float(width) + eps));
    for (int i = 0; i < width; i += W) {
        const Vec normed = mul(load_part(x + i, width - i), factor);
        store_part(out + i, mul(normed, load_part(weight + i, width - i)), width - i);
    }
}

inline void add_row(const float* x, int width, float* sum) {
    for (int i = 0; i < width; i += W)
        store_part(sum + i, add(load_part(sum + i, width - i), load_part(x + i, width - i)), width - i);
}

inline void scale_row(float factor, int width, float* x) {
    for (int i = 0; i < width; i += W) store_part(x + i, mul(load_part(x + i, width - i), splat(factor)), width - i);
}

inline void rotate(const float* head, const float* cosines, const float* sines, int dim, float* out) {
    const int half = dim / 2;
    for (int i = 0; i < half; i += W) {
        const int left = half - i;
        const Vec a = load_part(head + i, left), b = load_part(head + half + i, left);
        const Vec cosine = load_part(cosines + i, left), sine = load_part(sines + i, left);
        store_part(out + i, sub(mul(a, cosine), mul(b, sine)), left);
        store_part(out + half + i, fma(a, sine, mul(b, cosine)), left);
    }
}

inline Vec sigmoid(Vec x) { return div(splat(1.0f), add(splat(1.0f), exp(sub(splat(0.0f), x)))); }

struct Silu {
    static Vec of(Vec x) { return mul(x, sigmoid(x)); }
};

// x / 2 * (1 + tanh(y)) = x * sigmoid(2 y), y being sqrt(2 / pi) * (x + 0.044715 x^3).
struct GeluTanh {
    static Vec of(Vec x) {
        const Vec cubic = fma(mul(mul(x, x), x), splat(0.044715f), x);
        return mul(x, sigmoid(mul(cubic, splat(1.5957691216f))));
    }
};

template <class Function>
void gate_row(const float* gate, const float* up, int width, float* out) {
    for (int i = 0; i < width; i += W) {
        const int left = width - i;
        store_part(out + i, mul(Function::of(load_part(gate + i, left)), load_part(up + i, left)), left);
    }
}
