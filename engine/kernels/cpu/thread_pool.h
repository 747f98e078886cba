// A fixed set of threads that help their caller through one piece of work at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tandem {

// The caller is thread 0 and works too, so there are never more runnable threads than `threads`. Workers spin
// a bounded time for the next piece, then sleep. A worker that wakes late finds less to do or nothing: work
// is handed out by its function, from counters, and nobody waits for a thread that never began.
class ThreadPool : public std::enable_shared_from_this<ThreadPool> {
public:
    using Work = void (*)(void* context, int thread);

    // Workers are pinned to cpus[thread], unless `cpus` is empty. Throws std::invalid_argument for less than
    // one thread or too few cpus.
    ThreadPool(int threads, const std::vector<int>& cpus, int spin_microseconds);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return 1 + int(workers_.size()); }

    // Returns when every thread that began has returned. Callers take turns. `alone`: the caller's thread only,
    // for what is done sooner than another thread wakes.
    void run(Work work, void* context, bool alone = false);

    // While there is one, workers spin for the next piece without end: for many pieces with little between them.
    class Awake {
    public:
        explicit Awake(ThreadPool& pool) : pool_(pool) { pool_.awake_.fetch_add(1, std::memory_order_relaxed); }
        ~Awake() { pool_.awake_.fetch_sub(1, std::memory_order_relaxed); }
        Awake(const Awake&) = delete;
        Awake& operator=(const Awake&) = delete;

    private:
        ThreadPool& pool_;
    };

private:
    void serve(int thread, int cpu);
    uint64_t next_piece(uint32_t last_epoch);
    bool spin(uint64_t& state, uint32_t last_epoch) const;
    bool is_news(uint64_t state, uint32_t last_epoch) const;

    // Epoch in the upper half; then whether the piece can still be joined, and how many workers are in it.
    static constexpr uint64_t kOpen = uint64_t{1} << 31, kActive = kOpen - 1;

    std::atomic<uint64_t> state_{0};
    std::atomic<int> sleepers_{0};
    std::atomic<int> awake_{0};
    std::atomic<bool> caller_sleeps_{false};
    std::atomic<bool> stop_{false};
    Work work_ = nullptr;
    void* context_ = nullptr;
    int spin_microseconds_;
    std::mutex callers_, mutex_;
    std::condition_variable news_, done_;
    std::vector<std::thread> workers_;
};

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

}  // namespace tandem
