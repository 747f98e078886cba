// Four floats: NEON of 64-bit Arm.

using Vec = float32x4_t;
constexpr int W = 4;
constexpr int kHeadsTogether = 4;
constexpr int kRowBlock = 8;

inline Vec splat(float x) { return vdupq_n_f32(x); }
inline Vec load(const float* p) { return vld1q_f32(p); }
inline Vec load(const bfloat16* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16));
}
inline Vec load(const float16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits))); }
inline Vec load(const int8_t* p) {
    int32_t bytes;
    std::memcpy(&bytes, p, 4);
    const int8x8_t eight = vreinterpret_s8_s32(vdup_n_s32(bytes));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(eight))));
}
inline void store(float* p, Vec a) { vst1q_f32(p, a); }
inline Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
inline Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
inline Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
inline Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
inline Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
inline Vec max(Vec a, Vec b) { return vmaxq_f32(a, b); }
inline Vec min(Vec a, Vec b) { return vminq_f32(a, b); }
inline Vec select_le(Vec a, Vec b, Vec yes, Vec no) { return vbslq_f32(vcleq_f32(a, b), yes, no); }
inline Vec scale_by_power(Vec p, Vec t) {
    const int32x4_t exponent = vshlq_n_s32(vreinterpretq_s32_f32(t), 23);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), exponent));
}
inline float reduce_add(Vec a) { return vaddvq_f32(a); }
inline float reduce_max(Vec a) { return vmaxvq_f32(a); }
// Sums of W vectors, in two steps: four at a time, then W / 4 of these.
inline Vec sum_four(const Vec* a) { return vpaddq_f32(vpaddq_f32(a[0], a[1]), vpaddq_f32(a[2], a[3])); }
inline Vec sum_fours(const Vec* a) { return a[0]; }
inline Vec count_from(float first) {
    const float counted[4] = {first, first + 1.0f, first + 2.0f, first + 3.0f};
    return vld1q_f32(counted);
}
inline void prefetch(const char* p) { __builtin_prefetch(p); }
