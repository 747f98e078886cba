// What all attention over one KV storage shares: its layout, the kernels, and the threads' working memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "thread_pool.h"

namespace tandem {

constexpr ptrdiff_t kTileBytes = 128 * 1024;

// Pages are [page][layer][k/v][kv_head] of blocks, see kernels.h.
struct Layout {
    int layers, heads, kv_heads, dim, page_size;
    Format kv, io;
    float scale, softcap;
    char* pages;
    int64_t num_pages;
    std::vector<int> windows;  // of each layer: tokens a row sees at most, 0 for all

    int group() const { return heads / kv_heads; }
    ptrdiff_t block_bytes() const {
        return ptrdiff_t(page_size) * (dim * size_of(kv) + (kv == Format::int8 ? 4 : 0));
    }
    ptrdiff_t layer_bytes() const { return 2 * kv_heads * block_bytes(); }
    ptrdiff_t page_bytes() const { return layers * layer_bytes(); }
    // Keys that decode takes at a time, so that two tiles of all heads stay in a cache of the second level. It
    // decides how sums are rounded, so it must not depend on how the work is shared.
    int tile_tokens() const {
        int tokens = kTileTokens;
        while (tokens > 16 && tokens * layer_bytes() > page_size * kTileBytes) tokens /= 2;
        return tokens;
    }
    char* block(int64_t page, int layer, int side, int kv_head) const {
        return pages + page * page_bytes() + layer * layer_bytes() + (side * kv_heads + kv_head) * block_bytes();
    }
    Pages pages_of(int layer, int kv_head) const {
        return {block(0, layer, 0, kv_head), page_bytes(), block_bytes(), kv_heads * block_bytes(), page_size, dim};
    }
};

class AttentionContext : public std::enable_shared_from_this<AttentionContext> {
public:
    // Throws std::invalid_argument for a shape that the kernels can't do.
    AttentionContext(std::shared_ptr<ThreadPool> pool, const std::string& instruction_set, Layout layout);
    AttentionContext(const AttentionContext&) = delete;
    AttentionContext& operator=(const AttentionContext&) = delete;

    const Layout layout;
    const Kernels& kernels;
    const std::shared_ptr<ThreadPool> pool;

    // Of one thread, 64-byte aligned.
    float* queries(int thread) const { return scratch_[size_t(thread)].get(); }      // [heads][padded(dim)]
    float* partial(int thread) const { return queries(thread) + queries_floats_; }   // [kv_heads] of partial_floats
    float* prefill(int thread) const { return partial(thread) + partial_floats_; }   // prefill_scratch_floats

private:
    struct Free {
        void operator()(float* memory) const;
    };
    size_t queries_floats_, partial_floats_;
    std::vector<std::unique_ptr<float, Free>> scratch_;
};

}  // namespace tandem
