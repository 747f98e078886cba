#include "thread_pool.h"

#include <chrono>
#include <stdexcept>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace tandem {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRelaxesPerLook = 32;  // between two looks at the clock

void pin_this_thread(int cpu) {
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(size_t(cpu), &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // refused: it runs wherever it may
#else
    (void)cpu;
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads, const std::vector<int>& cpus, int spin_microseconds)
    : spin_microseconds_(spin_microseconds) {
    if (threads < 1) throw std::invalid_argument("a thread pool needs a thread");
    if (!cpus.empty() && int(cpus.size()) < threads) throw std::invalid_argument("fewer cpus than threads");
    for (int thread = 1; thread < threads; ++thread) {
        const int cpu = cpus.empty() ? -1 : cpus[size_t(thread)];
        workers_.emplace_back([this, thread, cpu] { serve(thread, cpu); });
    }
}

ThreadPool::~ThreadPool() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    news_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(Work work, void* context, bool alone) {
    const std::lock_guard<std::mutex> turn(callers_);
    if (alone || workers_.empty()) return work(context, 0);
    work_ = work;
    context_ = context;
    const uint64_t epoch = (state_.load(std::memory_order_relaxed) >> 32) + 1;
    state_.store(epoch << 32 | kOpen);
    if (sleepers_.load() > 0) {
        const std::lock_guard<std::mutex> lock(mutex_);
        news_.notify_all();
    }
    work(context, 0);
    state_.fetch_and(~kOpen);
    for (int i = 0; i < 1000 && (state_.load() & kActive) != 0; ++i) relax();
    if ((state_.load() & kActive) != 0) {
        std::unique_lock<std::mutex> lock(mutex_);
        caller_sleeps_ = true;
        done_.wait(lock, [this] { return (state_.load() & kActive) == 0; });
        caller_sleeps_ = false;
    }
}

void ThreadPool::serve(int thread, int cpu) {
    if (cpu >= 0) pin_this_thread(cpu);
    uint32_t epoch = 0;
    while (true) {
        uint64_t state = next_piece(epoch);
        if (stop_) return;
        if (!state_.compare_exchange_strong(state, state + 1)) continue;
        epoch = uint32_t(state >> 32);
        work_(context_, thread);
        const uint64_t before = state_.fetch_sub(1);
        if ((before & (kOpen | kActive)) == 1 && caller_sleeps_.load()) {
            const std::lock_guard<std::mutex> lock(mutex_);
            done_.notify_one();
        }
    }
}

bool ThreadPool::is_news(uint64_t state, uint32_t last_epoch) const {
    return (state & kOpen) != 0 && uint32_t(state >> 32) != last_epoch;
}

bool ThreadPool::spin(uint64_t& state, uint32_t last_epoch) const {
    const auto end = Clock::now() + std::chrono::microseconds(spin_microseconds_);
    while (true) {
        for (int i = 0; i < kRelaxesPerLook; ++i, relax()) {
            state = state_.load();
            if (is_news(state, last_epoch) || stop_) return true;
        }
        if (Clock::now() < end) continue;
        if (awake_.load(std::memory_order_relaxed) == 0) return false;
        std::this_thread::yield();  // the caller itself may be waiting for this processor
    }
}

uint64_t ThreadPool::next_piece(uint32_t last_epoch) {
    uint64_t state = 0;
    if (spin(state, last_epoch)) return state;
    std::unique_lock<std::mutex> lock(mutex_);
    ++sleepers_;
    news_.wait(lock, [&] {
        state = state_.load();
        return is_news(state, last_epoch) || stop_;
    });
    --sleepers_;
    return state;
}

}  // namespace tandem
