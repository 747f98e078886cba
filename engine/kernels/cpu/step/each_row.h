// Rows handed out to the threads of a pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "thread_pool.h"

namespace tandem {

constexpr int64_t kElementsTogether = 4096;  // a few microseconds of elementwise work: not worth another thread

// Calls work(row, thread) for every row, each of so many elements.
template <class Work>
void each_row(ThreadPool& pool, int64_t rows, int64_t elements, const Work& work) {
    struct Shared {
        const Work& work;
        int64_t rows, chunk;
        std::atomic<int64_t> next;
    } shared{work, rows, std::max<int64_t>(1, kElementsTogether / elements), {0}};
    pool.run(
        [](void* argument, int thread) {
            Shared& all = *static_cast<Shared*>(argument);
            while (all.next.load(std::memory_order_relaxed) < all.rows) {
                const int64_t first = all.next.fetch_add(all.chunk, std::memory_order_relaxed);
                const int64_t last = std::min(first + all.chunk, all.rows);
                for (int64_t row = first; row < last; ++row) all.work(row, thread);
            }
        },
        &shared, rows <= shared.chunk);
}

}  // namespace tandem
