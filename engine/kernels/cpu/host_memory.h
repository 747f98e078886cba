// What host memory gives.
#pragma once

#include <cstddef>

#include "kernels.h"
#include "thread_pool.h"

namespace tandem {

// Bytes per second at which all threads of the pool together read memory once, in pieces handed out as they
// go: the best of some rounds over `bytes` of fresh memory. Throws std::bad_alloc.
double read_bandwidth(ThreadPool& pool, const Kernels& kernels, size_t bytes, int rounds);

}  // namespace tandem
