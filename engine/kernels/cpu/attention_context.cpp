#include "attention_context.h"

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <utility>

#include "instruction_sets.h"

namespace tandem {

namespace {

Layout checked(Layout layout) {
    auto demand = [](bool good, const char* what) {
        if (!good) throw std::invalid_argument(what);
    };
    demand(layout.layers > 0 && layout.num_pages > 0 && layout.page_size > 0 && layout.pages != nullptr,
           "attention needs layers, pages and tokens in them");
    demand(layout.kv_heads > 0 && layout.heads > 0 && layout.heads % layout.kv_heads == 0,
           "the query heads must be a multiple of the KV heads");
    demand(layout.group() <= kMaxGroup, "too many query heads for each KV head");
    demand(layout.dim > 0 && layout.dim <= kMaxDim && layout.dim % kDimMultiple == 0,
           "the head size must be a multiple of 16, at most 256");
    demand(layout.io != Format::int8, "queries and outputs are floats");
    demand(layout.windows.size() == size_t(layout.layers), "each layer needs a window, or 0");
    for (const int window : layout.windows) demand(window >= 0, "a window can't be negative");
    return layout;
}

constexpr size_t kAlignment = 64;

size_t aligned(size_t floats) { return (floats * 4 + kAlignment - 1) / kAlignment * kAlignment / 4; }

}  // namespace

AttentionContext::AttentionContext(std::shared_ptr<ThreadPool> threads, const std::string& instruction_set,
                                   Layout wanted)
    : layout(checked(std::move(wanted))),
      kernels(kernels_named(instruction_set)),
      pool(std::move(threads)),
      queries_floats_(aligned(size_t(layout.heads) * size_t(padded(layout.dim)))),
      partial_floats_(aligned(size_t(layout.kv_heads) * size_t(partial_floats(layout.group(), layout.dim)))) {
    const size_t floats = queries_floats_ + partial_floats_ + aligned(prefill_scratch_floats(layout.dim));
    for (int thread = 0; thread < pool->threads(); ++thread) {
        scratch_.emplace_back(static_cast<float*>(std::aligned_alloc(kAlignment, floats * 4)));
        if (!scratch_.back()) throw std::bad_alloc();
    }
}

void AttentionContext::Free::operator()(float* memory) const { std::free(memory); }

}  // namespace tandem
