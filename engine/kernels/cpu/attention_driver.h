// A thread that computes attention while its caller does other work.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "attention_plan.h"

namespace tandem {

// One layer of a plan. The words are 4-byte aligned and may be written or watched by a device.
struct Job {
    std::shared_ptr<AttentionPlan> plan;
    int layer = 0;
    const void* kv = nullptr;  // stored first, unless null
    const void* queries = nullptr;
    void* outputs = nullptr;
    const std::atomic<uint32_t>* gate = nullptr;  // begun once it holds gate_value; null: at once
    uint32_t gate_value = 0;
    std::atomic<uint32_t>* done = nullptr;  // then becomes done_value, unless null
    uint32_t done_value = 0;
    int event_fd = -1;  // eventfd(2) that is added 1 at the end, unless negative
};

enum class JobState : int { waiting = 0, running = 1, done = 2, cancelled = 3 };

class AttentionDriver {
public:
    using Ticket = int64_t;

    explicit AttentionDriver(int spin_microseconds);
    ~AttentionDriver();  // cancels what has not begun
    AttentionDriver(const AttentionDriver&) = delete;
    AttentionDriver& operator=(const AttentionDriver&) = delete;

    // Takes jobs over; their tickets are consecutive, and the first one is returned. A job begins when its
    // gate is open and no earlier job with an open gate waits. Throws std::length_error if too many are
    // waiting, and then takes none.
    Ticket submit(std::vector<Job> jobs);

    // Throws std::out_of_range for a ticket that was never given out. Of jobs long past only "done" is known.
    JobState state(Ticket ticket);

    // Whether the job came to its end, done or cancelled, within the time; negative waits for ever.
    bool wait(Ticket ticket, int64_t timeout_microseconds);

    // Whether the job will not run; one that runs or is done is let be.
    bool cancel(Ticket ticket);

    // Looks at the gates again, now: for those who open one from this process.
    void notify();

    static constexpr int kCapacity = 4096;  // jobs that wait

private:
    struct Slot {
        Job job;
        JobState state = JobState::done;
    };
    void serve();
    Slot* next_open();
    void forget_ended();
    void finish(Slot& slot);
    bool is_over(Ticket ticket);
    Slot& slot(Ticket ticket) { return slots_[size_t(ticket % kCapacity)]; }
    void check(Ticket ticket) const;
    void pause(std::unique_lock<std::mutex>& lock, int round);

    std::mutex mutex_;
    std::condition_variable news_, ends_;
    std::vector<Slot> slots_;
    Ticket first_ = 0, last_ = 0;  // tickets first_ .. last_ - 1 have not all ended
    bool stop_ = false;
    bool looked_away_ = false;  // notified since the gates were last looked at
    int spin_microseconds_;
    std::thread thread_;
};

}  // namespace tandem
