// One tile of weights times some rows. Every output of every row goes through the same operations in the same
// order, however many rows there are.

constexpr int kParts = kTileOutputs / W;  // of a tile, a register each

// Lines of one part: 4 * W bytes of each 64.
template <int Bits>
inline void unpack(const char* lines, Codes (&codes)[kGroups]) {
    if constexpr (Bits == 8) {
        TANDEM_UNROLL
        for (int g = 0; g < kGroups; ++g) codes[g] = load_codes(lines + 64 * g);
        return;
    }
    TANDEM_UNROLL
    for (int g = 0; g < 4; ++g) {
        const Codes both = load_codes(lines + 64 * g);
        codes[g] = low_bits(both);
        codes[g + 4] = high_bits(both);
    }
    if constexpr (Bits == 5) {
        const Codes plane = load_codes(lines + 256);
        codes[0] = add_bits<4, 16>(codes[0], plane);
        codes[1] = add_bits<3, 16>(codes[1], plane);
        codes[2] = add_bits<2, 16>(codes[2], plane);
        codes[3] = add_bits<1, 16>(codes[3], plane);
        codes[4] = add_bits<0, 16>(codes[4], plane);
        codes[5] = add_bits<-1, 16>(codes[5], plane);
        codes[6] = add_bits<-2, 16>(codes[6], plane);
        codes[7] = add_bits<-3, 16>(codes[7], plane);
    }
    if constexpr (Bits == 6) {
        TANDEM_UNROLL
        for (int half = 0; half < 2; ++half) {
            const Codes plane = load_codes(lines + 256 + 64 * half);
            codes[4 * half] = add_bits<4, 48>(codes[4 * half], plane);
            codes[4 * half + 1] = add_bits<2, 48>(codes[4 * half + 1], plane);
            codes[4 * half + 2] = add_bits<0, 48>(codes[4 * half + 2], plane);
            codes[4 * half + 3] = add_bits<-2, 48>(codes[4 * half + 3], plane);
        }
    }
}

inline Vec load_halves(const char* p) { return load(reinterpret_cast<const float16*>(p)); }
inline Vec load_bytes(const char* p) { return load(reinterpret_cast<const int8_t*>(p)); }

// Of a part's outputs. `second` is of the second half of a block that has two scales, in units of nothing: those
// scales are small integers, and sums of products with them exact.
struct BlockScales {
    Vec scale, first, second, minimum;
};

template <WeightFormat F>
inline BlockScales scales_of(const char* header, const char* scales, int part) {
    constexpr WeightLayout layout = layout_of(F);
    BlockScales result{};
    if constexpr (layout.super == 1) {
        result.scale = load_halves(scales + 2 * W * part);
        if constexpr (layout.minima) result.minimum = load_halves(scales + 2 * kTileOutputs + 2 * W * part);
    } else if constexpr (layout.scales == 1) {
        result.scale = mul(load_halves(header + 2 * W * part), load_bytes(scales + W * part));
        const Vec minimum = load_bytes(scales + kTileOutputs + W * part);
        result.minimum = mul(sub(splat(0.0f), load_halves(header + 2 * kTileOutputs + 2 * W * part)), minimum);
    } else {
        result.scale = load_halves(header + 2 * W * part);
        result.first = load_bytes(scales + W * part);
        result.second = load_bytes(scales + kTileOutputs + W * part);
    }
    return result;
}

template <WeightFormat F>
inline int32_t start_of(const ActivationBlock& block) {
    constexpr int offset = layout_of(F).offset;
    return offset == 8 ? block.start_8 : offset == 16 ? block.start_16 : kUnsignedCodes ? block.start_128 : 0;
}

template <WeightFormat F, int Rows>
inline void add_block(Vec (&sums)[Rows], const Codes (&codes)[kGroups], const BlockScales& scales,
                      const ActivationBlock* rows) {
    constexpr WeightLayout layout = layout_of(F);
    Ints dots[Rows];
    Vec products[Rows];
    if constexpr (layout.scales == 2) {
        for (int r = 0; r < Rows; ++r) dots[r] = all_ints(rows[r].start_32[0]);
        add_products<layout.bits, 0, kGroups / 2>(dots, codes, rows);
        for (int r = 0; r < Rows; ++r) {
            products[r] = mul(floats_of(dots[r]), scales.first);
            dots[r] = all_ints(rows[r].start_32[1]);
        }
        add_products<layout.bits, kGroups / 2, kGroups>(dots, codes, rows);
        for (int r = 0; r < Rows; ++r) products[r] = fma(floats_of(dots[r]), scales.second, products[r]);
    } else {
        for (int r = 0; r < Rows; ++r) dots[r] = all_ints(layout.offset ? start_of<F>(rows[r]) : 0);
        add_products<layout.bits, 0, kGroups>(dots, codes, rows);
        for (int r = 0; r < Rows; ++r) products[r] = floats_of(dots[r]);
    }
    for (int r = 0; r < Rows; ++r) {
        sums[r] = fma(mul(products[r], splat(rows[r].scale)), scales.scale, sums[r]);
        if constexpr (layout.minima) sums[r] = fma(splat(rows[r].scaled_sum), scales.minimum, sums[r]);
    }
}

template <int Rows>
inline void store_outputs(const TileSpan& span, const Vec (&sums)[Rows], int part) {
    const int left = span.outputs - part * W;
    if (left <= 0) return;
    for (int r = 0; r < Rows; ++r) {
        float* const out = span.out + r * span.out_stride + part * W;
        if (left >= W) {
            store(out, span.bias ? add(sums[r], load(span.bias + part * W)) : sums[r]);
        } else {
            float last[W];
            store(last, sums[r]);
            for (int i = 0; i < left; ++i) out[i] = span.bias ? last[i] + span.bias[part * W + i] : last[i];
        }
    }
}

inline void prefetch_ahead(const char* p, int bytes) {
    for (int i = 0; i < bytes; i += 64) prefetch(p + kPrefetchBytes + i);
}

template <WeightFormat F, int Rows>
void multiply_integers(const TileSpan& span) {
    constexpr WeightLayout layout = layout_of(F);
    for (int part = 0; part < kParts; ++part) {
        Vec sums[Rows];
        for (int r = 0; r < Rows; ++r) sums[r] = splat(0.0f);
        const ActivationBlock* activations = span.blocks_of_rows;
        const char* at = span.tile;
        for (int first = 0; first < span.blocks; first += layout.super) {
            const char* const header = at;
            at += layout.header_bytes();
            for (int b = 0; b < layout.super; ++b, at += layout.block_bytes(), activations += Rows) {
                if (part == 0 && span.prefetch) prefetch_ahead(at, layout.block_bytes());
                Codes codes[kGroups];
                unpack<layout.bits>(at + 4 * W * part, codes);
                const BlockScales scales = scales_of<F>(header, at + layout.line_bytes(), part);
                add_block<F>(sums, codes, scales, activations);
            }
        }
        store_outputs<Rows>(span, sums, part);
    }
}

// The weights of two inputs.
template <class Element>
inline void load_pair(const Element* p, Vec* first, Vec* second) {
    *first = load(p);
    *second = load(p + kTileOutputs);
}

// Elements from the beginning of a pair to a part's.
template <class Element>
constexpr int part_offset(int part) {
    return std::is_same_v<Element, bfloat16> ? 2 * W * part : W * part;
}

// Sums are made for each block first: shorter chains of additions, and more exact.
template <class Element, int Rows>
void multiply_floats(const TileSpan& span) {
    constexpr int pairs = kBlockInputs / 4;  // of a line of activations
    for (int part = 0; part < kParts; ++part) {
        Vec sums[Rows];
        for (int r = 0; r < Rows; ++r) sums[r] = splat(0.0f);
        const Element* weights = reinterpret_cast<const Element*>(span.tile) + part_offset<Element>(part);
        const ActivationLine* lines = span.lines_of_rows;
        for (int line = 0; line < 2 * span.blocks; ++line, lines += Rows) {
            if (part == 0 && span.prefetch)
                prefetch_ahead(reinterpret_cast<const char*>(weights), pairs * 2 * kTileOutputs * int(sizeof(Element)));
            Vec partial[Rows];
            for (int r = 0; r < Rows; ++r) partial[r] = splat(0.0f);
            for (int i = 0; i < pairs; ++i, weights += 2 * kTileOutputs) {
                Vec first, second;
                load_pair(weights, &first, &second);
                TANDEM_UNROLL
                for (int r = 0; r < Rows; ++r) {
                    partial[r] = fma(first, splat(lines[r].values[2 * i]), partial[r]);
                    partial[r] = fma(second, splat(lines[r].values[2 * i + 1]), partial[r]);
                }
            }
            for (int r = 0; r < Rows; ++r) sums[r] = add(sums[r], partial[r]);
        }
        store_outputs<Rows>(span, sums, part);
    }
}
