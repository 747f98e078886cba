// Codes of weights and their products with activations, four outputs at a time, in plain C++.

#define TANDEM_UNROLL
struct Codes {
    uint8_t v[4 * W];
};
struct Ints {
    int32_t v[W];
};

inline Codes load_codes(const char* p) {
    Codes result;
    std::memcpy(result.v, p, sizeof result.v);
    return result;
}
inline Codes low_bits(Codes a) {
    for (uint8_t& each : a.v) each &= 15;
    return a;
}
inline Codes high_bits(Codes a) {
    for (uint8_t& each : a.v) each >>= 4;
    return a;
}
// Adds the bits of `plane` that are under the mask when shifted to the left, or to the right if negative.
template <int Left, int Mask>
inline Codes add_bits(Codes a, Codes plane) {
    for (int i = 0; i < 4 * W; ++i)
        a.v[i] |= uint8_t((Left >= 0 ? plane.v[i] << (Left & 7) : plane.v[i] >> (-Left & 7)) & Mask);
    return a;
}

inline Ints all_ints(int32_t value) {
    Ints result;
    for (int32_t& each : result.v) each = value;
    return result;
}
inline Vec floats_of(Ints a) {
    Vec result;
    for (int i = 0; i < W; ++i) result.v[i] = float(a.v[i]);
    return result;
}

// Whether codes of 8 bits are multiplied as they are, so that sums begin at -128 times that of the activations.
constexpr bool kUnsignedCodes = true;

// Sums plus the products of groups First .. Last - 1.
template <int Bits, int First, int Last>
inline Ints row_products(Ints sums, const Codes (&codes)[kGroups], const int8_t* activations) {
    for (int g = First; g < Last; ++g)
        for (int i = 0; i < 4 * W; ++i) sums.v[i / 4] += int32_t(codes[g].v[i]) * activations[4 * g + i % 4];
    return sums;
}

template <int Bits, int First, int Last, int Rows>
inline void add_products(Ints (&sums)[Rows], const Codes (&codes)[kGroups], const ActivationBlock* rows) {
    for (int r = 0; r < Rows; ++r) sums[r] = row_products<Bits, First, Last>(sums[r], codes, rows[r].codes);
}

inline void store_codes(int8_t* p, Vec a) {
    for (int i = 0; i < W; ++i) p[i] = int8_t(int32_t(a.v[i]));
}
inline void load_pair(const bfloat16* p, Vec* first, Vec* second) {
    for (int i = 0; i < W; ++i) {
        first->v[i] = tandem::to_float(p[2 * i]);
        second->v[i] = tandem::to_float(p[2 * i + 1]);
    }
}
