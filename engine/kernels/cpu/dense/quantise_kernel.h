// Activations to integers. The same bits on every instruction set.

inline void quantise_block(const float* values, ActivationBlock& block) {
    Vec largest = splat(0.0f), poison = splat(0.0f);
    for (int i = 0; i < kBlockInputs; i += W) {
        const Vec x = load(values + i);
        largest = max(max(x, sub(splat(0.0f), x)), largest);
        poison = fma(x, splat(0.0f), poison);  // not a number if x is not finite
    }
    const float top = reduce_max(largest);
    const bool zero = !(top >= 0x1p-100f);  // the inverse of less is not finite
    const float factor = zero ? 0.0f : 127.0f / top, scale = (zero ? 0.0f : top / 127.0f) + reduce_add(poison);
    int32_t sums[2];
    for (int half = 0; half < 2; ++half) {
        Vec sum = splat(0.0f);
        for (int i = half * kBlockInputs / 2; i < (half + 1) * kBlockInputs / 2; i += W) {
            const Vec product = mul(load(values + i), splat(factor));
            // The order of operands makes -127 of what is not a number, here where min and max take the second one.
            const Vec kept = max(min(product, splat(127.0f)), splat(-127.0f));
            const Vec code = sub(add(kept, splat(12582912.0f)), splat(12582912.0f));  // 1.5 * 2^23: rounds
            store_codes(block.codes + i, code);
            sum = add(sum, code);
        }
        sums[half] = int32_t(reduce_add(sum));
    }
    block.scale = scale;
    block.scaled_sum = scale * float(sums[0] + sums[1]);
    block.start_8 = -8 * (sums[0] + sums[1]);
    block.start_16 = -16 * (sums[0] + sums[1]);
    block.start_128 = -128 * (sums[0] + sums[1]);
    block.start_32[0] = -32 * sums[0];
    block.start_32[1] = -32 * sums[1];
    block.unused = 0;
}

inline void quantise(const float* values, int count, ActivationBlock* blocks, ptrdiff_t stride) {
    for (; count >= kBlockInputs; count -= kBlockInputs, values += kBlockInputs, blocks += stride)
        quantise_block(values, *blocks);
    if (count <= 0) return;
    float last[kBlockInputs] = {};
    std::memcpy(last, values, size_t(count) * sizeof(float));
    quantise_block(last, *blocks);
}
