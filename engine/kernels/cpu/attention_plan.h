// One iteration's attention: the work is cut into units once, and every layer goes through them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention_context.h"

namespace tandem {

// Sequences of an iteration, laid out one after another. Row counts, positions and page tables are [sequences].
struct Sequences {
    int64_t count;
    const int64_t* rows;         // rows of each: 1 decodes, more prefill
    const int64_t* starts;       // position of its first row
    const int64_t* page_starts;  // [count + 1]: where its page table begins in page_ids
    const int64_t* page_ids;
};

class AttentionPlan : public std::enable_shared_from_this<AttentionPlan> {
public:
    explicit AttentionPlan(std::shared_ptr<const AttentionContext> context);
    AttentionPlan(const AttentionPlan&) = delete;
    AttentionPlan& operator=(const AttentionPlan&) = delete;

    // Plans an iteration; memory of earlier ones is used again. Throws std::invalid_argument if a sequence
    // has no rows, or too few or unknown pages.
    void prepare(const Sequences& sequences);

    // Stores the rows' keys and values, [rows][2][kv_heads][dim].
    void append(int layer, const void* kv);

    // One row's of the same, [2][kv_heads][dim], for those who share the rows out among threads themselves.
    void append_row(int layer, int64_t row, const void* kv) const;

    // Each row over its sequence's tokens up to its own: [rows][heads][dim] to the same shape. One call at a
    // time. Does not allocate.
    void attend(int layer, const void* queries, void* outputs);

    int layers() const { return context_->layout.layers; }
    int64_t rows() const { return rows_; }
    const Layout& layout() const { return context_->layout; }

private:
    // One row over a run of keys with the query heads of some KV heads, or some rows over all of their keys with
    // those of one.
    struct Unit {
        int64_t row;
        int64_t table;       // where the page table begins in page_ids_
        int kv_head, kv_heads;
        int rows;            // 0: decode
        int first, last;     // decode: tokens; prefill: first is the first row's position
        int piece = -1;      // decode, where a row is cut: index of the partial results ...
        int cut = -1;        // ... and of the cut
    };
    struct Cut {
        int64_t row;
        int first_piece, pieces;
        int units;           // that compute them
    };
    struct alignas(64) Range {  // of units, of one thread; others help when theirs is done
        std::atomic<int> next{0};
        int first = 0, last = 0;
    };
    // The units of the layers with one window.
    struct Schedule {
        int window;
        std::vector<Unit> units;
        std::vector<Cut> cuts;
        std::unique_ptr<std::atomic<int>[]> left;  // units of each cut that are to come
        size_t left_size = 0;
        std::vector<float> partials;
        std::unique_ptr<Range[]> ranges;
        bool small = false;  // not worth waking another thread
    };
    struct Call;

    void check(const Sequences& sequences) const;
    void take_tables(const Sequences& sequences);
    void schedule(const Sequences& sequences, Schedule& schedule) const;
    int first_key(const Schedule& schedule, int length) const;
    int heads_together(const Sequences& sequences, const Schedule& schedule) const;
    void schedule_decode(Schedule& schedule, int64_t row, int64_t table, int length, int heads) const;
    void schedule_prefill(Schedule& schedule, int64_t row, int64_t table, int start, int rows) const;
    void divide(Schedule& schedule) const;
    void work(const Call& call, int thread) const;
    void compute(const Call& call, const Unit& unit, const Unit* next, int thread) const;
    DecodeSpan decode_span(const Call& call, const Unit& unit, int thread) const;
    void prefill(const Call& call, const Unit& unit, int thread) const;
    void merge(const Call& call, int64_t row, int kv_head, int kv_heads, const float* partials, int count) const;
    ptrdiff_t partials_of(int piece, int kv_head) const;
    ptrdiff_t element(int64_t row, int kv_head) const;
    void append_rows(int layer, const char* kv, int64_t first, int64_t last) const;

    const std::shared_ptr<const AttentionContext> context_;
    int64_t rows_ = 0;
    std::vector<int32_t> page_ids_;
    std::vector<int64_t> slot_pages_;  // [rows]: page that takes the row's keys and values ...
    std::vector<int> slot_offsets_;    // ... and the place in it
    std::vector<Schedule> schedules_;
    std::vector<size_t> schedule_of_layer_;
};

}  // namespace tandem
