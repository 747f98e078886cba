// Facts and wishes about host memory.
#pragma once

#include <cstddef>

#include "kernels.h"
#include "thread_pool.h"

namespace tandem {

// Asks the system for huge pages: paged KV touches memory in small pieces all over, and each small page
// costs an address translation. Whether it said yes.
bool advise_huge_pages(void* address, size_t bytes);

// Bytes per second at which all threads of the pool together read memory once, in pieces handed out as they
// go: the best of some rounds over `bytes` of fresh memory. Throws std::bad_alloc.
double read_bandwidth(ThreadPool& pool, const Kernels& kernels, size_t bytes, int rounds);

}  // namespace tandem
