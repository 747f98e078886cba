// Prefill attention: many queries against many keys, bound by arithmetic.
//
// A vector's lanes are queries, so the softmax is vertical throughout: scores are [key][lane], accumulators
// [dim][lane]. Both products are one small matrix kernel with broadcast elements of the keys or values.
// Tiles begin at multiples of kTileTokens whatever the chunk, so that a row's result does not depend on
// which rows are computed with it.

constexpr int kLaneVectors = 3;
constexpr float kHidden = -1e30f;  // score of a key that a row does not see

// c[i][lane] = c[i][lane] * corrections[lane] + sum over k of a[i * i_stride + k * k_stride] * b[k][lane],
// for Rows rows and Vectors * W lanes; rows of b and c are kQueryLanes long. No corrections: c is overwritten.
template <int Rows, int Vectors>
inline void multiply_block(const float* a, int i_stride, int k_stride, const float* b, int count,
                           const float* corrections, float* c) {
    Vec sums[Rows][Vectors];
    for (int v = 0; v < Vectors; ++v) {
        const Vec correction = corrections ? load(corrections + v * W) : splat(0.0f);
        for (int i = 0; i < Rows; ++i)
            sums[i][v] = corrections ? mul(load(c + i * kQueryLanes + v * W), correction) : splat(0.0f);
    }
    for (int k = 0; k < count; ++k) {
        Vec lanes[Vectors];
        for (int v = 0; v < Vectors; ++v) lanes[v] = load(b + k * kQueryLanes + v * W);
        for (int i = 0; i < Rows; ++i) {
            const Vec element = splat(a[i * i_stride + k * k_stride]);
            for (int v = 0; v < Vectors; ++v) sums[i][v] = fma(element, lanes[v], sums[i][v]);
        }
    }
    for (int i = 0; i < Rows; ++i)
        for (int v = 0; v < Vectors; ++v) store(c + i * kQueryLanes + v * W, sums[i][v]);
}

template <int Vectors>
inline void multiply_lanes(const float* a, int i_stride, int k_stride, const float* b, int rows, int count,
                           const float* corrections, float* c) {
    int i = 0;
    for (; i + kRowBlock <= rows; i += kRowBlock) {
        multiply_block<kRowBlock, Vectors>(a + i * i_stride, i_stride, k_stride, b, count, corrections,
                                           c + i * kQueryLanes);
    }
    for (; i < rows; ++i) {
        multiply_block<1, Vectors>(a + i * i_stride, i_stride, k_stride, b, count, corrections,
                                   c + i * kQueryLanes);
    }
}

inline void multiply(const float* a, int i_stride, int k_stride, const float* b, int rows, int count,
                     int vectors, const float* corrections, float* c) {
    for (int v = 0; v < vectors; v += kLaneVectors) {
        const float* lanes = b + v * W;
        const float* factors = corrections ? corrections + v * W : nullptr;
        switch (vectors - v) {
            case 1: multiply_lanes<1>(a, i_stride, k_stride, lanes, rows, count, factors, c + v * W); break;
            case 2: multiply_lanes<2>(a, i_stride, k_stride, lanes, rows, count, factors, c + v * W); break;
            default: multiply_lanes<3>(a, i_stride, k_stride, lanes, rows, count, factors, c + v * W); break;
        }
    }
}

// A unit's working memory.
struct PrefillScratch {
    float *queries, *accumulators;          // [dim][kQueryLanes]
    float* scores;                          // [kTileTokens][kQueryLanes]
    float *maxima, *sums, *corrections;     // [kQueryLanes]
    float* positions;                       // [kQueryLanes], of the lanes' rows in the sequence
    float *keys, *values;                   // [kTileTokens][dim]

    PrefillScratch(float* memory, int dim) {
        auto take = [&memory](ptrdiff_t floats) {
            float* taken = memory;
            memory += floats;
            return taken;
        };
        queries = take(ptrdiff_t(dim) * kQueryLanes);
        accumulators = take(ptrdiff_t(dim) * kQueryLanes);
        scores = take(ptrdiff_t(kTileTokens) * kQueryLanes);
        maxima = take(kQueryLanes);
        sums = take(kQueryLanes);
        corrections = take(kQueryLanes);
        positions = take(kQueryLanes);
        keys = take(ptrdiff_t(kTileTokens) * dim);
        values = take(ptrdiff_t(kTileTokens) * dim);
    }
};

// Lane r * group + h is row r's head h.
inline void spread_queries(const PrefillSpan& span, int lanes, const PrefillScratch& s) {
    const int dim = span.pages.dim;
    const ptrdiff_t bytes = size_of(span.io);
    alignas(64) float query[kMaxDim];
    for (int lane = 0; lane < lanes; ++lane) {
        const int row = lane / span.group, used = row < span.rows ? row : span.rows - 1;
        const ptrdiff_t at = used * span.row_stride + ptrdiff_t(lane % span.group) * dim;
        widen_any(static_cast<const char*>(span.queries) + at * bytes, span.io, dim, query);
        for (int d = 0; d < dim; ++d) s.queries[d * kQueryLanes + lane] = query[d];
        s.positions[lane] = float(span.position + used);
        s.maxima[lane] = kHidden;
        s.sums[lane] = 0.0f;
    }
    std::memset(s.accumulators, 0, sizeof(float) * size_t(dim) * kQueryLanes);
}

template <class KV>
inline void widen_rows(const PrefillSpan& span, int first, int tokens, const PrefillScratch& s) {
    const Pages& pages = span.pages;
    const int dim = pages.dim;
    for (int t = 0; t < tokens; ++t) {
        const int page = (first + t) / pages.page_size, offset = (first + t) % pages.page_size;
        const char* block = pages.keys + pages.page_stride * span.page_table[page];
        for (int side = 0; side < 2; ++side, block += pages.value_offset) {
            float* out = (side ? s.values : s.keys) + t * dim;
            widen(reinterpret_cast<const KV*>(block) + ptrdiff_t(offset) * dim, dim, out);
            if (std::is_same<KV, int8_t>::value) {
                float scale;
                std::memcpy(&scale, block + ptrdiff_t(pages.page_size) * dim + offset * ptrdiff_t(sizeof(float)),
                            sizeof(float));
                for (int d = 0; d < dim; d += W) store(out + d, mul(load(out + d), splat(scale)));
            }
        }
    }
}

// From products to weights, with maxima, sums and corrections updated; `hides`: some row does not see all.
inline void soften_lanes(const PrefillSpan& span, int first, int tokens, int lanes, bool hides,
                         const PrefillScratch& s) {
    for (int lane = 0; lane < lanes; lane += W) {
        const Vec position = load(s.positions + lane), before = load(s.maxima + lane);
        const Vec oldest = sub(position, splat(float(span.window) - 1.0f));
        Vec highest = before;
        for (int t = 0; t < tokens; ++t) {
            float* const at = s.scores + t * kQueryLanes + lane;
            Vec x = score(load(at), span.scale, span.softcap);
            if (hides) {
                const Vec key = splat(float(first + t));
                x = select_le(key, position, x, splat(kHidden));
                x = select_le(oldest, key, x, splat(kHidden));
            }
            store(at, x);
            highest = max(highest, x);
        }
        Vec total = splat(0.0f);
        for (int t = 0; t < tokens; ++t) {
            float* const at = s.scores + t * kQueryLanes + lane;
            const Vec weight = exp(sub(load(at), highest));
            store(at, weight);
            total = add(total, weight);
        }
        const Vec correction = exp(sub(before, highest));
        store(s.corrections + lane, correction);
        store(s.sums + lane, fma(load(s.sums + lane), correction, total));
        store(s.maxima + lane, highest);
    }
}

inline void gather_outputs(const PrefillSpan& span, const PrefillScratch& s) {
    const int dim = span.pages.dim;
    alignas(64) float output[kMaxDim];
    for (int lane = 0; lane < span.rows * span.group; ++lane) {
        const float share = 1.0f / s.sums[lane];
        for (int d = 0; d < dim; ++d) output[d] = s.accumulators[d * kQueryLanes + lane] * share;
        const ptrdiff_t at = (lane / span.group) * span.row_stride + ptrdiff_t(lane % span.group) * dim;
        write_floats(output, dim, span.io, span.outputs, at);
    }
}

template <class KV>
void prefill(const PrefillSpan& span) {
    const int dim = span.pages.dim;
    const int vectors = (span.rows * span.group + W - 1) / W, lanes = vectors * W;
    const PrefillScratch s(span.scratch, dim);
    spread_queries(span, lanes, s);
    const int end = span.position + span.rows;
    const int oldest = span.position + 1 - span.window;  // that the first row sees
    for (int first = oldest > 0 ? oldest / kTileTokens * kTileTokens : 0; first < end; first += kTileTokens) {
        const int tokens = end - first < kTileTokens ? end - first : kTileTokens;
        const bool hides = first + tokens - 1 > span.position || first <= end - 1 - span.window;
        widen_rows<KV>(span, first, tokens, s);
        multiply(s.keys, dim, 1, s.queries, tokens, dim, vectors, nullptr, s.scores);
        soften_lanes(span, first, tokens, lanes, hides, s);
        multiply(s.values, 1, dim, s.scores, dim, tokens, vectors, s.corrections, s.accumulators);
    }
    gather_outputs(span, s);
}
