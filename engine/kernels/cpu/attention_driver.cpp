#include "attention_driver.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#if defined(__linux__)
#include <unistd.h>
#endif

namespace tandem {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kShortestPause = 20, kLongestPause = 1000;  // microseconds between two looks at closed gates

void raise_event(int event_fd) {
#if defined(__linux__)
    const uint64_t one = 1;
    if (event_fd >= 0 && ::write(event_fd, &one, sizeof one) < 0) return;  // closed meanwhile: nobody listens
#else
    (void)event_fd;
#endif
}

}  // namespace

AttentionDriver::AttentionDriver(int spin_microseconds)
    : slots_(kCapacity), spin_microseconds_(spin_microseconds), thread_([this] { serve(); }) {}

AttentionDriver::~AttentionDriver() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (Ticket ticket = first_; ticket < last_; ++ticket)
            if (slot(ticket).state == JobState::waiting) slot(ticket).state = JobState::cancelled;
        stop_ = true;
    }
    news_.notify_all();
    thread_.join();
}

AttentionDriver::Ticket AttentionDriver::submit(std::vector<Job> jobs) {
    const std::lock_guard<std::mutex> lock(mutex_);
    forget_ended();
    if (last_ - first_ + Ticket(jobs.size()) > kCapacity) throw std::length_error("too many jobs are waiting");
    const Ticket ticket = last_;
    for (Job& job : jobs) {
        slot(last_).job = std::move(job);
        slot(last_++).state = JobState::waiting;
    }
    looked_away_ = true;
    news_.notify_all();
    return ticket;
}

void AttentionDriver::check(Ticket ticket) const {
    if (ticket < 0 || ticket >= last_) throw std::out_of_range("there is no job " + std::to_string(ticket));
}

JobState AttentionDriver::state(Ticket ticket) {
    const std::lock_guard<std::mutex> lock(mutex_);
    check(ticket);
    return ticket + kCapacity < last_ ? JobState::done : slot(ticket).state;
}

bool AttentionDriver::is_over(Ticket ticket) {
    if (ticket < first_) return true;
    const JobState state = slot(ticket).state;
    return state == JobState::done || state == JobState::cancelled;
}

bool AttentionDriver::wait(Ticket ticket, int64_t timeout_microseconds) {
    std::unique_lock<std::mutex> lock(mutex_);
    check(ticket);
    auto over = [&] { return is_over(ticket); };
    if (timeout_microseconds < 0) {
        ends_.wait(lock, over);
        return true;
    }
    return ends_.wait_for(lock, std::chrono::microseconds(timeout_microseconds), over);
}

bool AttentionDriver::cancel(Ticket ticket) {
    const std::lock_guard<std::mutex> lock(mutex_);
    check(ticket);
    if (ticket + kCapacity < last_) return false;
    Slot& found = slot(ticket);
    if (found.state == JobState::waiting) {
        found.state = JobState::cancelled;
        looked_away_ = true;
        news_.notify_all();  // it may have been all that was waited for
        ends_.notify_all();
    }
    return found.state == JobState::cancelled;
}

void AttentionDriver::notify() {
    const std::lock_guard<std::mutex> lock(mutex_);
    looked_away_ = true;
    news_.notify_all();
}

// Of those at the front.
void AttentionDriver::forget_ended() {
    while (first_ < last_ && is_over(first_)) slot(first_++).job = Job();
}

// The oldest waiting job whose gate is open.
AttentionDriver::Slot* AttentionDriver::next_open() {
    forget_ended();
    for (Ticket ticket = first_; ticket < last_; ++ticket) {
        Slot& candidate = slot(ticket);
        if (candidate.state != JobState::waiting) continue;
        const Job& job = candidate.job;
        if (!job.gate || job.gate->load(std::memory_order_acquire) == job.gate_value) return &candidate;
    }
    return nullptr;
}

void AttentionDriver::serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    auto idle_since = Clock::now();
    for (int round = 0; !stop_;) {
        Slot* const next = next_open();
        if (next) {
            next->state = JobState::running;
            const Job& job = next->job;
            lock.unlock();
            if (job.kv) job.plan->append(job.layer, job.kv);
            job.plan->attend(job.layer, job.queries, job.outputs);
            lock.lock();
            finish(*next);
            idle_since = Clock::now();
            round = 0;
        } else if (Clock::now() - idle_since < std::chrono::microseconds(spin_microseconds_)) {
            lock.unlock();
            for (int i = 0; i < 32; ++i) relax();
            lock.lock();
        } else {
            pause(lock, round++);
            if (first_ == last_) idle_since = Clock::now();
        }
    }
}

void AttentionDriver::finish(Slot& slot) {
    slot.state = JobState::done;
    if (slot.job.done) slot.job.done->store(slot.job.done_value, std::memory_order_release);
    raise_event(slot.job.event_fd);
    ends_.notify_all();
}

// Sleeps until there is news, or, while gates are watched, for longer the longer nothing comes.
void AttentionDriver::pause(std::unique_lock<std::mutex>& lock, int round) {
    auto news = [this] { return std::exchange(looked_away_, false) || stop_; };
    if (first_ == last_) {
        news_.wait(lock, news);
    } else {
        const int microseconds = std::min(kShortestPause << std::min(round, 10), kLongestPause);
        news_.wait_for(lock, std::chrono::microseconds(microseconds), news);
    }
}

}  // namespace tandem
