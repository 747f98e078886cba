// What all vectors share, in terms of their primitives.

// e^x to about 1e-7 relative, 0 below -87.3, for x up to 88 (Cephes, expf).
inline Vec exp(Vec x) {
    const Vec kept = min(max(x, splat(-87.3f)), splat(88.0f));
    const Vec shifted = fma(kept, splat(1.44269504f), splat(12582912.0f));  // 1.5 * 2^23: rounds
    const Vec n = sub(shifted, splat(12582912.0f));
    const Vec r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), kept));
    Vec p = fma(r, splat(1.9875691500e-4f), splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, mul(r, r), add(r, splat(1.0f)));
    return select_le(x, splat(-87.3f), splat(0.0f), scale_by_power(p, shifted));
}

// cap * tanh(x / cap)
inline Vec soft_cap(Vec x, float cap) {
    const Vec e = exp(min(mul(x, splat(2.0f / cap)), splat(80.0f)));
    return mul(splat(cap), sub(splat(1.0f), div(splat(2.0f), add(e, splat(1.0f)))));
}

inline Vec score(Vec product, float scale, float cap) {
    const Vec scaled = mul(product, splat(scale));
    return cap > 0.0f ? soft_cap(scaled, cap) : scaled;
}
