// Decode attention: few queries against many keys, bound by reading keys and values once.
//
// A tile of keys is reached through pointers to its rows, so that page borders cost nothing further in. All KV
// heads take a tile before the next one: a page's heads lie one after another, and memory is read fastest along
// long runs. Meanwhile the next tile's pages are prefetched through the page table. The query heads of a KV head
// share each load.
// Online softmax: Milakov and Gimelshein, arXiv 1805.02867.

constexpr int kScored = 4;  // keys whose dot products are summed across lanes together
constexpr int kLine = 64;   // bytes of a cache line

struct Tile {
    const char* keys[kTileTokens];    // rows of the first KV head
    const char* values[kTileTokens];
    const char* scales[kTileTokens];  // of the keys; int8 only
    int tokens;
};

template <class KV>
inline void locate(const DecodeSpan& span, int first, Tile& tile) {
    const Pages& pages = span.pages;
    const ptrdiff_t row_bytes = ptrdiff_t(pages.dim) * sizeof(KV);
    tile.tokens = span.last - first < span.tile_tokens ? span.last - first : span.tile_tokens;
    int page = first / pages.page_size, offset = first % pages.page_size;
    for (int t = 0; t < tile.tokens; offset = 0, ++page) {
        const char* keys = pages.keys + pages.page_stride * span.page_table[page];
        const char* scales = keys + pages.page_size * row_bytes;
        for (; offset < pages.page_size && t < tile.tokens; ++offset, ++t) {
            tile.keys[t] = keys + offset * row_bytes;
            tile.values[t] = tile.keys[t] + pages.value_offset;
            tile.scales[t] = scales + offset * ptrdiff_t(sizeof(float));
        }
    }
    for (int t = tile.tokens; t % kScored != 0; ++t) tile.keys[t] = tile.keys[tile.tokens - 1];  // ignored
}

// What is to be prefetched while a tile is worked on: its pages' blocks, keys and values of all heads. Lines are
// asked for from several runs by turns: the processor's own prefetcher then runs ahead in each of them (one core
// read 64 KB line after line at 12.0 GB/s, and eight 4 KB parts of it by turns at 13.7).
class Ahead {
public:
    Ahead() = default;  // nothing
    // The tile of `span` that begins at token `first`, without a page that an earlier tile has begun.
    Ahead(const DecodeSpan* span, int first) : span_(span) {
        const int page_size = span->pages.page_size;
        const int last = first + span->tile_tokens < span->last ? first + span->tile_tokens : span->last;
        page_ = first / page_size + (first > span->first && first % page_size != 0);
        end_page_ = (last + page_size - 1) / page_size;
        run_bytes_ = span->kv_heads * span->pages.head_stride;
        offset_ = run_bytes_;
    }
    // Lines for each of `steps` steps.
    int share(int steps) const {
        if (page_ >= end_page_) return 0;
        const ptrdiff_t lines = (run_bytes_ + kLine - 1) / kLine * 2 * (end_page_ - page_);
        return int((lines + steps - 1) / steps);
    }
    // Takes up the next runs when those before are done: not in step(), which stands in the innermost loops.
    void refill() {
        if (offset_ < run_bytes_ || page_ >= end_page_) return;
        const Pages& pages = span_->pages;
        for (count_ = 0; count_ < kRuns && page_ < end_page_; ++page_) {
            runs_[count_++] = pages.keys + pages.page_stride * span_->page_table[page_];
            runs_[count_] = runs_[count_ - 1] + pages.value_offset;
            ++count_;
        }
        offset_ = 0;
    }
    void step(int lines) {
        for (; lines > 0 && offset_ < run_bytes_; --lines) {
            prefetch(runs_[turn_] + offset_);
            if (++turn_ < count_) continue;
            turn_ = 0;
            offset_ += kLine;
        }
    }

private:
    static constexpr int kRuns = 8;
    const DecodeSpan* span_ = nullptr;
    const char* runs_[kRuns];
    ptrdiff_t run_bytes_ = 0, offset_ = 0;
    int page_ = 0, end_page_ = 0, count_ = 0, turn_ = 0;
};

// Products with float queries, arranged like the parts of stored keys.
template <class KV>
struct FloatDot {
    using Key = KV;
    using Raw = typename Stored<KV>::Raw;
    static constexpr int parts = Stored<KV>::parts, step = W * parts;
    static Raw load_key(const char* p, int left) { return Stored<KV>::load_raw(p, left); }
    template <int Keys, int Heads>
    static void multiply(const Raw (&keys)[Keys], const float* queries, int stride, Vec (&sums)[Heads][Keys]) {
        for (int part = 0; part < parts; ++part) {
            Vec floats[Keys];
            for (int i = 0; i < Keys; ++i) floats[i] = Stored<KV>::part(keys[i], part);
            for (int h = 0; h < Heads; ++h) {
                const Vec query = load(queries + h * stride + part * W);
                for (int i = 0; i < Keys; ++i) sums[h][i] = fma(floats[i], query, sums[h][i]);
            }
        }
    }
    // Makes [padded] of [dim], zero beyond it.
    static void arrange(const void* queries, Format io, int dim, float* out) {
        alignas(64) float plain[kMaxDim + 64];
        widen_any(queries, io, dim, plain);
        for (int d = dim; d < padded(dim); ++d) plain[d] = 0.0f;
        for (int d = 0; d < dim; d += step) {
            Vec in[parts], halves[parts];
            for (int v = 0; v < parts; ++v) in[v] = load(plain + d + v * W);
            separate_parts(in, halves);
            for (int v = 0; v < parts; ++v) store(out + d + v * W, in[v]);
        }
    }
};

// The products of Heads queries with keys t to t + 3, which lie `byte` behind the tile's rows, as sum_four()
// leaves them.
template <class Dot, int Heads>
inline void four_products(const Tile& tile, int t, ptrdiff_t byte, Ahead& ahead, int lines, const float* queries,
                          int dim, Vec* products, int stride) {
    constexpr int step_bytes = Dot::step * int(sizeof(typename Dot::Key));
    const int whole = dim / Dot::step * Dot::step;
    Vec sums[Heads][kScored];
    for (int h = 0; h < Heads; ++h)
        for (int i = 0; i < kScored; ++i) sums[h][i] = splat(0.0f);
    typename Dot::Raw keys[kScored];
    const float* chunk = queries;
    for (const float* end = queries + whole; chunk != end; chunk += Dot::step, byte += step_bytes) {
        ahead.step(lines);
        for (int i = 0; i < kScored; ++i) keys[i] = Dot::load_key(tile.keys[t + i] + byte, Dot::step);
        Dot::multiply(keys, chunk, padded(dim), sums);
    }
    if (whole < dim) {
        for (int i = 0; i < kScored; ++i) keys[i] = Dot::load_key(tile.keys[t + i] + byte, dim - whole);
        Dot::multiply(keys, chunk, padded(dim), sums);
    }
    for (int h = 0; h < Heads; ++h) products[h * stride] = sum_four(sums[h]);
}

// scores[h * kTileTokens + t] = query h . key t, for Heads heads.
template <class Dot, int Heads>
inline void dot_products(const Tile& tile, ptrdiff_t byte, Ahead& ahead, int lines, const float* queries, int dim,
                         float* scores) {
    constexpr int fours = W / kScored;
    for (int t = 0; t < tile.tokens; t += W) {
        Vec products[Heads][fours];
        for (int j = 0; j < fours; ++j) {
            const int first = t + j * kScored;
            if (first < tile.tokens) {
                four_products<Dot, Heads>(tile, first, byte, ahead, lines, queries, dim, &products[0][j], fours);
            } else {
                for (int h = 0; h < Heads; ++h) products[h][j] = splat(0.0f);
            }
        }
        for (int h = 0; h < Heads; ++h) store(scores + h * kTileTokens + t, sum_fours(products[h]));
    }
}

// accumulators[h][d] = accumulators[h][d] * corrections[h] + sum over t of weights[h][t] * value t [d], for
// Raws stored vectors from element d on, the last of which may be cut short.
template <class KV, int Heads, int Raws>
inline void weigh_block(const Tile& tile, ptrdiff_t byte, Ahead& ahead, int lines, const float* weights,
                        const float* corrections, int d, int left, int stride, float* accumulators) {
    constexpr int parts = Stored<KV>::parts, vectors = Raws * parts, step = parts * W;
    byte += ptrdiff_t(d) * ptrdiff_t(sizeof(KV));
    Vec sums[Heads][vectors];
    for (int h = 0; h < Heads; ++h)
        for (int v = 0; v < vectors; ++v)
            sums[h][v] = mul(load(accumulators + h * stride + d + v * W), splat(corrections[h]));
    for (int t = 0; t < tile.tokens; ++t) {
        ahead.step(lines);
        Vec values[vectors];
        for (int r = 0; r < Raws; ++r) {
            const auto raw = Stored<KV>::load_raw(tile.values[t] + byte + r * step * int(sizeof(KV)), left);
            for (int part = 0; part < parts; ++part) values[r * parts + part] = Stored<KV>::part(raw, part);
        }
        for (int h = 0; h < Heads; ++h) {
            const Vec weight = splat(weights[h * kTileTokens + t]);
            for (int v = 0; v < vectors; ++v) sums[h][v] = fma(weight, values[v], sums[h][v]);
        }
    }
    for (int h = 0; h < Heads; ++h)
        for (int v = 0; v < vectors; ++v) store(accumulators + h * stride + d + v * W, sums[h][v]);
}

template <class KV, int Heads>
inline void weigh(const Tile& tile, ptrdiff_t byte, Ahead& ahead, int lines, const float* weights,
                  const float* corrections, int dim, float* accumulators) {
    constexpr int step = Stored<KV>::parts * W, raws = 4 / Stored<KV>::parts;
    const int stride = padded(dim);
    int d = 0;
    for (; d + raws * step <= dim; d += raws * step) {
        weigh_block<KV, Heads, raws>(tile, byte, ahead, lines, weights, corrections, d, step, stride, accumulators);
    }
    for (; d < dim; d += step) {
        const int left = dim - d < step ? dim - d : step;
        weigh_block<KV, Heads, 1>(tile, byte, ahead, lines, weights, corrections, d, left, stride, accumulators);
    }
}

// The scales of one head's keys or values, `byte` behind the tile's.
template <class KV>
inline void gather_scales(const Tile& tile, ptrdiff_t byte, float* out) {
    for (int t = 0; t < tile.tokens; ++t) {
        std::memcpy(out + t, tile.scales[t] + byte, sizeof(float));
        out[t] *= Stored<KV>::unit;
    }
    for (int t = tile.tokens; t % W != 0; ++t) out[t] = 0.0f;
}

// Turns products into weights e^(score - maximum), updates maxima and sums, and tells by what earlier results
// are to be multiplied. Heads go side by side, so that none waits for another's sums.
template <bool Scaled, int Heads>
inline void soften(const DecodeSpan& span, int tokens, const float* key_scales, const float* value_scales,
                   float* scores, float* maxima, float* sums, float* corrections) {
    const Vec last = splat(float(tokens - 1)), hidden = splat(-INFINITY);
    Vec largest[Heads], totals[Heads];
    for (int h = 0; h < Heads; ++h) largest[h] = splat(maxima[h]), totals[h] = splat(0.0f);
    for (int t = 0; t < tokens; t += W) {
        const Vec scales = Scaled ? load(key_scales + t) : splat(1.0f);
        for (int h = 0; h < Heads; ++h) {
            float* const at = scores + h * kTileTokens + t;
            Vec x = score(Scaled ? mul(load(at), scales) : load(at), span.scale, span.softcap);
            if (t + W > tokens) x = select_le(count_from(float(t)), last, x, hidden);
            store(at, x);
            largest[h] = max(largest[h], x);
        }
    }
    alignas(64) float before[W] = {}, after[W] = {};
    for (int h = 0; h < Heads; ++h) before[h] = maxima[h], after[h] = maxima[h] = reduce_max(largest[h]);
    alignas(64) float factors[W];
    store(factors, exp(sub(load(before), load(after))));
    for (int t = 0; t < tokens; t += W) {
        const Vec scales = Scaled ? load(value_scales + t) : splat(1.0f);
        for (int h = 0; h < Heads; ++h) {
            float* const at = scores + h * kTileTokens + t;
            const Vec weights = exp(sub(load(at), splat(after[h])));
            totals[h] = add(totals[h], weights);
            store(at, Scaled ? mul(weights, scales) : weights);
        }
    }
    for (int h = 0; h < Heads; ++h) {
        corrections[h] = factors[h];
        sums[h] = sums[h] * factors[h] + reduce_add(totals[h]);
    }
}

// One tile, Heads query heads from `head` on of KV head `kv_head`.
template <class Dot, int Heads>
inline void attend_heads(const DecodeSpan& span, const Tile& tile, int kv_head, int head, Ahead& ahead, int lines) {
    using KV = typename Dot::Key;
    constexpr bool scaled = std::is_same<KV, int8_t>::value;
    const int dim = span.pages.dim, stride = padded(dim);
    const ptrdiff_t byte = kv_head * span.pages.head_stride;
    float* const maxima = span.partials + kv_head * ptrdiff_t(partial_floats(span.group, dim)) + head;
    float* const sums = maxima + span.group;
    float* const accumulators = sums - head + span.group + head * stride;
    const float* const queries = span.arranged + (kv_head * span.group + head) * stride;
    alignas(64) float scores[Heads * kTileTokens];
    alignas(64) float key_scales[kTileTokens], value_scales[kTileTokens];
    float corrections[Heads];
    if (scaled) {
        gather_scales<KV>(tile, byte, key_scales);
        gather_scales<KV>(tile, byte + span.pages.value_offset, value_scales);
    }
    ahead.refill();
    dot_products<Dot, Heads>(tile, byte, ahead, lines, queries, dim, scores);
    soften<scaled, Heads>(span, tile.tokens, key_scales, value_scales, scores, maxima, sums, corrections);
    ahead.refill();
    weigh<KV, Heads>(tile, byte, ahead, lines, scores, corrections, dim, accumulators);
}

template <class Dot>
inline void attend_tile(const DecodeSpan& span, const Tile& tile, Ahead ahead) {
    const int passes = (span.group + kHeadsTogether - 1) / kHeadsTogether;
    const int dim = span.pages.dim;
    const int key_steps = (tile.tokens + kScored - 1) / kScored * (dim / Dot::step > 0 ? dim / Dot::step : 1);
    const int value_steps = tile.tokens * (dim / (4 * W) > 0 ? dim / (4 * W) : 1);
    const int lines = ahead.share(span.kv_heads * passes * (key_steps + value_steps));
    for (int kv_head = 0; kv_head < span.kv_heads; ++kv_head) {
        for (int pass = 0, head = 0; pass < passes; ++pass) {
            const int heads = (span.group - head) / (passes - pass);  // as even as can be
            switch (heads) {
                case 1: attend_heads<Dot, 1>(span, tile, kv_head, head, ahead, lines); break;
                case 2: attend_heads<Dot, 2>(span, tile, kv_head, head, ahead, lines); break;
#if TANDEM_HEADS_TOGETHER >= 4
                case 3: attend_heads<Dot, 3>(span, tile, kv_head, head, ahead, lines); break;
                default: attend_heads<Dot, 4>(span, tile, kv_head, head, ahead, lines); break;
#endif
            }
            head += heads;
        }
    }
}

template <class Dot>
inline void begin(const DecodeSpan& span) {
    const int dim = span.pages.dim, stride = padded(dim), group = span.group;
    const char* queries = static_cast<const char*>(span.queries);
    for (int kv_head = 0; kv_head < span.kv_heads; ++kv_head) {
        float* const maxima = span.partials + kv_head * ptrdiff_t(partial_floats(group, dim));
        for (int h = 0; h < group; ++h) {
            const int head = kv_head * group + h;
            const char* query = queries + ptrdiff_t(head) * dim * size_of(span.io);
            Dot::arrange(query, span.io, dim, span.arranged + ptrdiff_t(head) * stride);
            maxima[h] = -INFINITY;
        }
        std::memset(maxima + group, 0, sizeof(float) * size_t(group) * size_t(stride + 1));
    }
}

template <class Dot>
void decode(const DecodeSpan& span, const DecodeSpan* next_span) {
    using KV = typename Dot::Key;
    begin<Dot>(span);
    Tile tile;
    for (int first = span.first; first < span.last; first += tile.tokens) {
        locate<KV>(span, first, tile);
        Ahead ahead;
        if (first + tile.tokens < span.last) {
            ahead = Ahead(&span, first + tile.tokens);
        } else if (next_span) {
            ahead = Ahead(next_span, next_span->first);
        }
        attend_tile<Dot>(span, tile, ahead);
    }
}

// Merges the partials of a row that was cut, in their order.
template <class KV>
void merge(const float* partials, int count, ptrdiff_t between, int group, int dim, Format io, void* output) {
    constexpr int parts = Stored<KV>::parts, step = parts * W;
    const int stride = padded(dim);
    alignas(64) float merged[kMaxDim + 64];
    for (int h = 0; h < group; ++h) {
        float highest = -INFINITY, total = 0.0f;
        for (int i = 0; i < count; ++i) {
            const float maximum = partials[i * between + h];
            highest = maximum > highest ? maximum : highest;
        }
        for (int d = 0; d < dim; d += step)
            for (int v = 0; v < parts; ++v) store(merged + d + v * W, splat(0.0f));
        for (int i = 0; i < count; ++i) {
            const float* partial = partials + i * between;
            float weight[W];
            store(weight, exp(splat(partial[h] - highest)));
            total += weight[0] * partial[group + h];
            const float* accumulators = partial + 2 * group + h * stride;
            for (int d = 0; d < (dim + step - 1) / step * step; d += W) {
                store(merged + d, fma(splat(weight[0]), load(accumulators + d), load(merged + d)));
            }
        }
        const Vec share = splat(1.0f / total);
        for (int d = 0; d < dim; d += step) {
            Vec chunk[parts], spare[parts];
            for (int v = 0; v < parts; ++v) chunk[v] = mul(load(merged + d + v * W), share);
            join_parts(chunk, spare);
            for (int v = 0; v < parts; ++v) store(merged + d + v * W, chunk[v]);
        }
        write_floats(merged, dim, io, output, ptrdiff_t(h) * dim);
    }
}
