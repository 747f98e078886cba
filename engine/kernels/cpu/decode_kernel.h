// Decode attention: few queries against many keys, bound by reading keys and values once.
//
// A tile's keys are reached through pointers to their rows, so that page borders cost nothing further in. The
// query heads of the KV head share each load; the next tile is prefetched through the page table meanwhile.
// Online softmax: Milakov and Gimelshein, arXiv 1805.02867.

constexpr int kScored = 4;  // keys whose dot products are summed across lanes together

struct Tile {
    const char* keys[kTileTokens];
    const char* values[kTileTokens];
    float key_scales[kTileTokens];  // int8 only
    float value_scales[kTileTokens];
    int tokens;
};

template <class KV>
inline void locate(const DecodeSpan& span, int first, Tile& tile) {
    const Pages& pages = span.pages;
    const ptrdiff_t row_bytes = ptrdiff_t(pages.dim) * sizeof(KV);
    tile.tokens = span.last - first < kTileTokens ? span.last - first : kTileTokens;
    int page = first / pages.page_size, offset = first % pages.page_size;
    for (int t = 0; t < tile.tokens; offset = 0, ++page) {
        const char* keys = pages.keys + pages.page_stride * span.page_table[page];
        const char* values = keys + pages.value_offset;
        for (; offset < pages.page_size && t < tile.tokens; ++offset, ++t) {
            tile.keys[t] = keys + offset * row_bytes;
            tile.values[t] = values + offset * row_bytes;
            if (std::is_same<KV, int8_t>::value) {
                const ptrdiff_t scale = pages.page_size * row_bytes + offset * ptrdiff_t(sizeof(float));
                std::memcpy(&tile.key_scales[t], keys + scale, sizeof(float));
                std::memcpy(&tile.value_scales[t], values + scale, sizeof(float));
            }
        }
    }
    for (int t = tile.tokens; t % kScored != 0; ++t) {  // scored, then ignored
        tile.keys[t] = tile.keys[tile.tokens - 1];
        tile.key_scales[t] = 0.0f;
    }
}

inline void prefetch_rows(const char* const* rows, int first, int count, int tokens, int row_bytes) {
    for (int t = first; t < first + count && t < tokens; ++t)
        for (int byte = 0; byte < row_bytes; byte += 64) prefetch(rows[t] + byte);
}

// What a head's queries are multiplied with a key by: float lanes ...
template <class KV>
struct FloatDot {
    using Query = float;
    using Key = KV;
    using Loaded = Vec;
    static constexpr int step = W;
    static Loaded load_query(const Query* p, int) { return load(p); }
    static Loaded load_key(const char* row, int d, int) { return load(reinterpret_cast<const KV*>(row) + d); }
    static Vec multiply(Loaded a, Loaded b, Vec sum) { return fma(a, b, sum); }
};

// scores[h * kTileTokens + t] = query h . key t, for Heads heads.
template <class Dot, int Heads>
inline void dot_products(const Tile& tile, const Tile* next, const typename Dot::Query* queries, int dim,
                         int row_bytes, float* scores) {
    for (int t = 0; t < tile.tokens; t += kScored) {
        if (next) prefetch_rows(next->keys, t, kScored, next->tokens, row_bytes);
        Vec sums[Heads][kScored];
        for (int h = 0; h < Heads; ++h)
            for (int i = 0; i < kScored; ++i) sums[h][i] = splat(0.0f);
        for (int d = 0; d < dim; d += Dot::step) {
            typename Dot::Loaded keys[kScored];
            for (int i = 0; i < kScored; ++i) keys[i] = Dot::load_key(tile.keys[t + i], d, dim);
            for (int h = 0; h < Heads; ++h) {
                const auto query = Dot::load_query(queries + h * dim + d, dim - d);
                for (int i = 0; i < kScored; ++i) sums[h][i] = Dot::multiply(keys[i], query, sums[h][i]);
            }
        }
        for (int h = 0; h < Heads; ++h) reduce4(sums[h], scores + h * kTileTokens + t);
    }
}

// accumulators[h][d] = accumulators[h][d] * corrections[h] + sum over t of weights[h][t] * value t [d], for
// Vectors * W elements from d on.
template <class KV, int Heads, int Vectors>
inline void weigh_block(const Tile& tile, const Tile* next, const float* weights, const float* corrections,
                        int d, int dim, int row_bytes, float* accumulators) {
    Vec sums[Heads][Vectors];
    for (int h = 0; h < Heads; ++h)
        for (int v = 0; v < Vectors; ++v)
            sums[h][v] = mul(load(accumulators + h * dim + d + v * W), splat(corrections[h]));
    for (int t = 0; t < tile.tokens; ++t) {
        if (next) prefetch_rows(next->values, t, 1, next->tokens, row_bytes);
        const KV* row = reinterpret_cast<const KV*>(tile.values[t]) + d;
        Vec values[Vectors];
        for (int v = 0; v < Vectors; ++v) values[v] = load(row + v * W);
        for (int h = 0; h < Heads; ++h) {
            const Vec weight = splat(weights[h * kTileTokens + t]);
            for (int v = 0; v < Vectors; ++v) sums[h][v] = fma(weight, values[v], sums[h][v]);
        }
    }
    for (int h = 0; h < Heads; ++h)
        for (int v = 0; v < Vectors; ++v) store(accumulators + h * dim + d + v * W, sums[h][v]);
}

template <class KV, int Heads>
inline void weigh(const Tile& tile, const Tile* next, const float* weights, const float* corrections, int dim,
                  int row_bytes, float* accumulators) {
    constexpr int kVectors = 4;
    int d = 0;
    for (; d + kVectors * W <= dim; d += kVectors * W) {
        weigh_block<KV, Heads, kVectors>(tile, d ? nullptr : next, weights, corrections, d, dim, row_bytes,
                                         accumulators);
    }
    for (; d < dim; d += W) {
        weigh_block<KV, Heads, 1>(tile, d ? nullptr : next, weights, corrections, d, dim, row_bytes,
                                  accumulators);
    }
}

// Turns products into weights e^(score - maximum), and updates maximum and sum. Returns by what earlier
// results are to be multiplied.
inline float soften(float* scores, const Tile& tile, bool scaled, float scale, float cap, float& maximum,
                    float& sum) {
    for (int t = tile.tokens; t % W != 0; ++t) scores[t] = 0.0f;
    Vec largest = splat(maximum);
    for (int t = 0; t < tile.tokens; t += W) {
        Vec s = load(scores + t);
        if (scaled) s = mul(s, load(tile.key_scales + t));
        store(scores + t, score(s, scale, cap));
    }
    for (int t = tile.tokens; t % W != 0; ++t) scores[t] = -INFINITY;
    for (int t = 0; t < tile.tokens; t += W) largest = max(largest, load(scores + t));
    const float highest = reduce_max(largest);
    Vec total = splat(0.0f);
    for (int t = 0; t < tile.tokens; t += W) {
        const Vec weights = exp(sub(load(scores + t), splat(highest)));
        total = add(total, weights);
        store(scores + t, scaled ? mul(weights, load(tile.value_scales + t)) : weights);
    }
    float correction[W];
    store(correction, exp(splat(maximum - highest)));
    maximum = highest;
    sum = sum * correction[0] + reduce_add(total);
    return correction[0];
}

template <class Dot, int Heads>
inline void attend_heads(const DecodeSpan& span, const Tile& tile, const Tile* next, int head,
                         float* maxima, float* sums, float* accumulators) {
    using KV = typename Dot::Key;
    const int dim = span.pages.dim, row_bytes = dim * int(sizeof(KV));
    alignas(64) float scores[Heads * kTileTokens];
    float corrections[Heads];
    const auto* queries = static_cast<const typename Dot::Query*>(span.queries) + ptrdiff_t(head) * dim;
    dot_products<Dot, Heads>(tile, next, queries, dim, row_bytes, scores);
    for (int h = 0; h < Heads; ++h) {
        corrections[h] = soften(scores + h * kTileTokens, tile, std::is_same<KV, int8_t>::value, span.scale,
                                span.softcap, maxima[head + h], sums[head + h]);
    }
    weigh<KV, Heads>(tile, next, scores, corrections, dim, row_bytes, accumulators + ptrdiff_t(head) * dim);
}

template <class Dot>
inline void attend_tile(const DecodeSpan& span, const Tile& tile, const Tile* next, float* maxima,
                        float* sums, float* accumulators) {
    const int passes = (span.group + kHeadsTogether - 1) / kHeadsTogether;
    for (int pass = 0, head = 0; pass < passes; ++pass) {
        const int heads = (span.group - head) / (passes - pass);  // as even as can be
        const Tile* ahead = pass == 0 ? next : nullptr;
        switch (heads) {
            case 1: attend_heads<Dot, 1>(span, tile, ahead, head, maxima, sums, accumulators); break;
            case 2: attend_heads<Dot, 2>(span, tile, ahead, head, maxima, sums, accumulators); break;
#if TANDEM_HEADS_TOGETHER >= 4
            case 3: attend_heads<Dot, 3>(span, tile, ahead, head, maxima, sums, accumulators); break;
            default: attend_heads<Dot, 4>(span, tile, ahead, head, maxima, sums, accumulators); break;
#endif
        }
        head += heads;
    }
}

template <class Dot>
void decode(const DecodeSpan& span, const DecodeSpan* next_span) {
    using KV = typename Dot::Key;
    float* const maxima = span.partial;
    float* const sums = maxima + span.group;
    float* const accumulators = sums + span.group;
    for (int h = 0; h < span.group; ++h) maxima[h] = -INFINITY, sums[h] = 0.0f;
    std::memset(accumulators, 0, sizeof(float) * size_t(span.group) * size_t(span.pages.dim));
    Tile tiles[2];
    int current = 0;
    locate<KV>(span, span.first, tiles[0]);
    for (int first = span.first; first < span.last; first += kTileTokens) {
        Tile* next = &tiles[1 - current];
        if (first + kTileTokens < span.last) {
            locate<KV>(span, first + kTileTokens, *next);
        } else if (next_span) {
            locate<KV>(*next_span, next_span->first, *next);
        } else {
            next = nullptr;
        }
        attend_tile<Dot>(span, tiles[current], next, maxima, sums, accumulators);
        current = 1 - current;
    }
}

// Merges the partials of a span that was cut, in their order.
inline void merge(const float* partials, int count, int group, int dim, Format io, void* output) {
    const int stride = partial_floats(group, dim);
    alignas(64) float merged[kMaxDim];
    for (int h = 0; h < group; ++h) {
        float highest = -INFINITY, total = 0.0f;
        for (int i = 0; i < count; ++i) {
            const float maximum = partials[i * ptrdiff_t(stride) + h];
            highest = maximum > highest ? maximum : highest;
        }
        for (int d = 0; d < dim; d += W) store(merged + d, splat(0.0f));
        for (int i = 0; i < count; ++i) {
            const float* partial = partials + i * ptrdiff_t(stride);
            float weight[W];
            store(weight, exp(splat(partial[h] - highest)));
            total += weight[0] * partial[group + h];
            const float* accumulators = partial + 2 * group + h * dim;
            for (int d = 0; d < dim; d += W) {
                store(merged + d, fma(splat(weight[0]), load(accumulators + d), load(merged + d)));
            }
        }
        const Vec share = splat(1.0f / total);
        for (int d = 0; d < dim; d += W) store(merged + d, mul(load(merged + d), share));
        write_floats(merged, dim, io, output, ptrdiff_t(h) * dim);
    }
}
