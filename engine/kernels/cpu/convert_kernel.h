// Between the formats of the model's activations and of the pages.

template <class T>
inline void widen(const T* source, int count, float* out) {
    for (int i = 0; i < count; i += W) store(out + i, load(source + i));
}

inline void widen_any(const void* source, Format io, int count, float* out) {
    switch (io) {
        case Format::bfloat16: widen(static_cast<const bfloat16*>(source), count, out); break;
        case Format::float16: widen(static_cast<const float16*>(source), count, out); break;
        default: widen(static_cast<const float*>(source), count, out); break;
    }
}

template <class T>
inline void narrow(const float* source, int count, T* out) {
    for (int i = 0; i < count; ++i) tandem::from_float(source[i], out + i);
}

// Writes from element `at` of `output` on.
inline void write_floats(const float* source, int count, Format io, void* output, ptrdiff_t at) {
    switch (io) {
        case Format::bfloat16: narrow(source, count, static_cast<bfloat16*>(output) + at); break;
        case Format::float16: narrow(source, count, static_cast<float16*>(output) + at); break;
        default: std::memcpy(static_cast<float*>(output) + at, source, sizeof(float) * size_t(count)); break;
    }
}

template <class KV>
void append(const void* source, Format io, int dim, int, int offset, char* block) {
    KV* const out = reinterpret_cast<KV*>(block) + ptrdiff_t(offset) * dim;
    const bool same = (std::is_same<KV, float>::value && io == Format::float32) ||
                      (std::is_same<KV, bfloat16>::value && io == Format::bfloat16) ||
                      (std::is_same<KV, float16>::value && io == Format::float16);
    if (same) {
        std::memcpy(out, source, sizeof(KV) * size_t(dim));
        return;
    }
    alignas(64) float values[kMaxDim];
    widen_any(source, io, dim, values);
    narrow(values, dim, out);
}

// Symmetric: a token's largest magnitude becomes 127. What is too small to divide by is zero.
inline void append_int8(const void* source, Format io, int dim, int page_size, int offset, char* block) {
    alignas(64) float values[kMaxDim];
    widen_any(source, io, dim, values);
    Vec largest = splat(0.0f);
    for (int d = 0; d < dim; d += W) {
        const Vec x = load(values + d);
        largest = max(largest, max(x, sub(splat(0.0f), x)));
    }
    const float magnitude = reduce_max(largest);
    const bool zero = magnitude < 1e-36f;
    const float scale = zero ? 0.0f : magnitude / 127.0f, inverse = zero ? 0.0f : 127.0f / magnitude;
    int8_t* const out = reinterpret_cast<int8_t*>(block) + ptrdiff_t(offset) * dim;
    for (int d = 0; d < dim; ++d) {
        const float rounded = std::nearbyint(values[d] * inverse);
        out[d] = int8_t(rounded >= 127.0f ? 127.0f : rounded > -127.0f ? rounded : -127.0f);  // NaN too
    }
    char* const scales = block + ptrdiff_t(page_size) * dim;
    std::memcpy(scales + offset * ptrdiff_t(sizeof(float)), &scale, sizeof(float));
}

inline float sum(const float* data, size_t count) {
    Vec sums[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
    for (size_t i = 0; i < count; i += 4 * W)
        for (int j = 0; j < 4; ++j) sums[j] = add(sums[j], load(data + i + size_t(j) * W));
    return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}
