#include "host_memory.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tandem {

namespace {

constexpr size_t kHugePage = size_t{1} << 21;
constexpr size_t kPiece = size_t{1} << 20;

struct Reading {
    const char* memory;
    size_t pieces;
    float (*sum)(const float*, size_t);
    std::atomic<size_t> next{0};
    std::atomic<uint32_t> sink{0};
};

void read_pieces(void* argument, int) {
    Reading& reading = *static_cast<Reading*>(argument);
    float total = 0.0f;
    for (size_t piece; (piece = reading.next.fetch_add(1)) < reading.pieces;)
        total += reading.sum(reinterpret_cast<const float*>(reading.memory + piece * kPiece), kPiece / 4);
    reading.sink.fetch_add(uint32_t(total));  // or the compiler might leave the reading out
}

void ask_for_huge_pages(void* address, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    madvise(address, bytes, MADV_HUGEPAGE);  // refused: a little slower
#else
    (void)address, (void)bytes;
#endif
}

}  // namespace

double read_bandwidth(ThreadPool& pool, const Kernels& kernels, size_t bytes, int rounds) {
    const size_t size = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    const std::unique_ptr<char, void (*)(void*)> memory(
        static_cast<char*>(std::aligned_alloc(kHugePage, size)), std::free);
    if (!memory) throw std::bad_alloc();
    ask_for_huge_pages(memory.get(), size);
    std::memset(memory.get(), 0, size);
    double best = 0.0;
    for (int round = 0; round < rounds; ++round) {
        Reading reading{memory.get(), size / kPiece, kernels.sum};
        const auto began = std::chrono::steady_clock::now();
        pool.run(read_pieces, &reading);
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
        best = std::max(best, double(size) / taken.count());
    }
    return best;
}

}  // namespace tandem
