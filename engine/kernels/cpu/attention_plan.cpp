#include "attention_plan.h"

#include <algorithm>
#include <climits>
#include <stdexcept>
#include <string>

namespace tandem {

namespace {

constexpr int kPieceTokens = 256;       // a longer row is cut there, so that threads can share it
constexpr int kUnitsPerThread = 4;      // wanted, so that the last ones end together
constexpr int64_t kAppendRows = 128;    // for each thread; fewer are not worth waking it
constexpr int64_t kSmall = 192 * 1024;  // bytes of KV, about fifteen microseconds of one thread
constexpr int kPrefillCost = 8;         // lanes that cost about as much as a key of a decode unit

}  // namespace

struct AttentionPlan::Call {
    const AttentionPlan& plan;
    Schedule& schedule;
    int layer;
    const char* queries;
    char* outputs;
};

AttentionPlan::AttentionPlan(std::shared_ptr<const AttentionContext> context) : context_(std::move(context)) {
    for (const int window : context_->layout.windows) {
        auto same = [window](const Schedule& schedule) { return schedule.window == window; };
        auto found = std::find_if(schedules_.begin(), schedules_.end(), same);
        if (found == schedules_.end()) {
            schedules_.emplace_back();
            found = schedules_.end() - 1;
            found->window = window;
            found->ranges = std::make_unique<Range[]>(size_t(context_->pool->threads()));
        }
        schedule_of_layer_.push_back(size_t(found - schedules_.begin()));
    }
}

void AttentionPlan::prepare(const Sequences& sequences) {
    check(sequences);
    take_tables(sequences);
    for (Schedule& each : schedules_) schedule(sequences, each);
}

void AttentionPlan::check(const Sequences& sequences) const {
    const Layout& layout = context_->layout;
    for (int64_t i = 0; i < sequences.count; ++i) {
        const int64_t end = sequences.starts[i] + sequences.rows[i];
        const int64_t pages = sequences.page_starts[i + 1] - sequences.page_starts[i];
        if (sequences.rows[i] < 1 || sequences.starts[i] < 0 || end > INT_MAX / 2 ||
            end > pages * layout.page_size) {
            throw std::invalid_argument("sequence " + std::to_string(i) + ": its tokens don't go into its pages");
        }
    }
    const int64_t total = sequences.count ? sequences.page_starts[sequences.count] : 0;
    for (int64_t i = 0; i < total; ++i) {
        if (sequences.page_ids[i] < 0 || sequences.page_ids[i] >= layout.num_pages)
            throw std::invalid_argument("there is no page " + std::to_string(sequences.page_ids[i]));
    }
}

void AttentionPlan::take_tables(const Sequences& sequences) {
    const int page_size = context_->layout.page_size;
    const int64_t total = sequences.count ? sequences.page_starts[sequences.count] : 0;
    page_ids_.clear();
    for (int64_t i = 0; i < total; ++i) page_ids_.push_back(int32_t(sequences.page_ids[i]));
    slot_pages_.clear();
    slot_offsets_.clear();
    for (int64_t i = 0; i < sequences.count; ++i) {
        for (int64_t row = 0; row < sequences.rows[i]; ++row) {
            const int64_t position = sequences.starts[i] + row;
            slot_pages_.push_back(sequences.page_ids[sequences.page_starts[i] + position / page_size]);
            slot_offsets_.push_back(int(position % page_size));
        }
    }
    rows_ = int64_t(slot_pages_.size());
}

void AttentionPlan::schedule(const Sequences& sequences, Schedule& schedule) const {
    schedule.units.clear();
    schedule.cuts.clear();
    const int heads = heads_together(sequences, schedule);
    int64_t row = rows_;
    for (int64_t i = sequences.count; i-- > 0;) {  // prefill comes last in a batch, and is best begun first
        row -= sequences.rows[i];
        const int64_t table = sequences.page_starts[i];
        if (sequences.rows[i] == 1) {
            schedule_decode(schedule, row, table, int(sequences.starts[i]) + 1, heads);
        } else {
            schedule_prefill(schedule, row, table, int(sequences.starts[i]), int(sequences.rows[i]));
        }
    }
    if (schedule.left_size < schedule.cuts.size()) {
        schedule.left_size = schedule.cuts.size() * 2;
        schedule.left = std::make_unique<std::atomic<int>[]>(schedule.left_size);
    }
    for (size_t i = 0; i < schedule.cuts.size(); ++i)
        schedule.left[i].store(schedule.cuts[i].units, std::memory_order_relaxed);
    if (!schedule.cuts.empty()) {
        const Cut& last = schedule.cuts.back();
        const size_t floats = size_t(partials_of(last.first_piece + last.pieces, 0));
        if (schedule.partials.size() < floats) schedule.partials.resize(floats);
    }
    divide(schedule);
}

int AttentionPlan::first_key(const Schedule& schedule, int length) const {
    return schedule.window > 0 && schedule.window < length ? length - schedule.window : 0;
}

// KV heads of a decode unit: all of them, unless there are too few units for the threads. What a head's result
// is does not depend on it.
int AttentionPlan::heads_together(const Sequences& sequences, const Schedule& schedule) const {
    const int kv_heads = context_->layout.kv_heads, wanted = kUnitsPerThread * context_->pool->threads();
    int64_t pieces = 0;
    for (int64_t i = 0; i < sequences.count; ++i) {
        const int length = int(sequences.starts[i]) + 1;
        if (sequences.rows[i] == 1)
            pieces += (length - 1) / kPieceTokens - first_key(schedule, length) / kPieceTokens + 1;
    }
    if (pieces == 0 || pieces >= wanted || context_->pool->threads() == 1) return kv_heads;
    const int parts = int(std::min<int64_t>((wanted + pieces - 1) / pieces, kv_heads));
    return (kv_heads + parts - 1) / parts;
}

void AttentionPlan::schedule_decode(Schedule& schedule, int64_t row, int64_t table, int length, int heads) const {
    const int kv_heads = context_->layout.kv_heads;
    Unit unit{row, table, 0, 0, 0, first_key(schedule, length), length, -1, -1};
    const int pieces = (length - 1) / kPieceTokens - unit.first / kPieceTokens + 1;
    if (pieces > 1) {
        const bool any = !schedule.cuts.empty();
        const int first_piece = any ? schedule.cuts.back().first_piece + schedule.cuts.back().pieces : 0;
        unit.piece = first_piece;
        unit.cut = int(schedule.cuts.size());
        schedule.cuts.push_back({row, first_piece, pieces, pieces * ((kv_heads + heads - 1) / heads)});
    }
    for (int piece = 0; piece < pieces; ++piece) {
        unit.last = std::min((unit.first / kPieceTokens + 1) * kPieceTokens, length);
        for (unit.kv_head = 0; unit.kv_head < kv_heads; unit.kv_head += heads) {
            unit.kv_heads = std::min(heads, kv_heads - unit.kv_head);
            schedule.units.push_back(unit);
        }
        unit.first = unit.last;
        unit.piece += pieces > 1;
    }
}

void AttentionPlan::schedule_prefill(Schedule& schedule, int64_t row, int64_t table, int start, int rows) const {
    const int together = kQueryLanes / context_->layout.group();
    for (int first = (rows - 1) / together * together; first >= 0; first -= together) {  // longest first
        const int count = std::min(together, rows - first);
        for (int kv_head = 0; kv_head < context_->layout.kv_heads; ++kv_head)
            schedule.units.push_back({row + first, table, kv_head, 1, count, start + first, 0, -1, -1});
    }
}

// Runs of units of about equal cost, one for each thread.
void AttentionPlan::divide(Schedule& schedule) const {
    const int threads = context_->pool->threads(), group = context_->layout.group();
    auto cost = [&](const Unit& unit) {
        if (unit.rows == 0) return int64_t(unit.last - unit.first + 8) * unit.kv_heads;
        const int64_t keys = schedule.window > 0 ? std::min(unit.first, schedule.window) : unit.first;
        return (keys + unit.rows) * (unit.rows * group + kPrefillCost) / kPrefillCost;
    };
    int64_t total = 0, done = 0;
    for (const Unit& unit : schedule.units) total += cost(unit);
    schedule.small = total * context_->layout.layer_bytes() / context_->layout.kv_heads <
                     kSmall * context_->layout.page_size;
    int thread = 0, index = 0;
    schedule.ranges[0].first = 0;
    for (const Unit& unit : schedule.units) {
        done += cost(unit);
        ++index;
        while (thread < threads - 1 && done * threads >= total * (thread + 1)) {
            schedule.ranges[size_t(thread)].last = index;
            schedule.ranges[size_t(++thread)].first = index;
        }
    }
    for (; thread < threads; ++thread) {
        schedule.ranges[size_t(thread)].last = index;
        if (thread + 1 < threads) schedule.ranges[size_t(thread) + 1].first = index;
    }
}

void AttentionPlan::append(int layer, const void* kv) {
    struct Appending {
        const AttentionPlan& plan;
        int layer;
        const char* kv;
        std::atomic<int64_t> next;
    } appending{*this, layer, static_cast<const char*>(kv), {0}};
    if (rows_ < 2 * kAppendRows || context_->pool->threads() == 1) return append_rows(layer, appending.kv, 0, rows_);
    context_->pool->run(
        [](void* argument, int) {
            auto& shared = *static_cast<Appending*>(argument);
            const int64_t rows = shared.plan.rows_;
            while (true) {
                const int64_t first = shared.next.fetch_add(kAppendRows);
                if (first >= rows) return;
                shared.plan.append_rows(shared.layer, shared.kv, first, std::min(first + kAppendRows, rows));
            }
        },
        &appending);
}

void AttentionPlan::append_rows(int layer, const char* kv, int64_t first, int64_t last) const {
    const Layout& layout = context_->layout;
    const ptrdiff_t bytes = ptrdiff_t(2) * layout.kv_heads * layout.dim * size_of(layout.io);
    for (int64_t row = first; row < last; ++row) append_row(layer, row, kv + row * bytes);
}

void AttentionPlan::append_row(int layer, int64_t row, const void* kv) const {
    const Layout& layout = context_->layout;
    const auto store = context_->kernels.append[int(layout.kv)];
    const char* source = static_cast<const char*>(kv);
    for (int side = 0; side < 2; ++side) {
        for (int head = 0; head < layout.kv_heads; ++head, source += layout.dim * size_of(layout.io)) {
            store(source, layout.io, layout.dim, layout.page_size, slot_offsets_[size_t(row)],
                  layout.block(slot_pages_[size_t(row)], layer, side, head));
        }
    }
}

void AttentionPlan::attend(int layer, const void* queries, void* outputs) {
    Schedule& schedule = schedules_[schedule_of_layer_[size_t(layer)]];
    for (int thread = 0; thread < context_->pool->threads(); ++thread) {
        Range& range = schedule.ranges[size_t(thread)];
        range.next.store(range.first, std::memory_order_relaxed);
    }
    Call call{*this, schedule, layer, static_cast<const char*>(queries), static_cast<char*>(outputs)};
    context_->pool->run(
        [](void* argument, int thread) {
            const Call& shared = *static_cast<const Call*>(argument);
            shared.plan.work(shared, thread);
        },
        &call, schedule.small);
}

void AttentionPlan::work(const Call& call, int thread) const {
    const int threads = context_->pool->threads();
    for (int i = 0; i < threads; ++i) {
        Range& range = call.schedule.ranges[size_t((thread + i) % threads)];
        while (range.next.load(std::memory_order_relaxed) < range.last) {
            const int index = range.next.fetch_add(1, std::memory_order_relaxed);
            if (index >= range.last) break;
            const Unit* unit = &call.schedule.units[size_t(index)];
            compute(call, *unit, index + 1 < range.last ? unit + 1 : nullptr, thread);
        }
    }
}

void AttentionPlan::compute(const Call& call, const Unit& unit, const Unit* next, int thread) const {
    if (unit.rows > 0) return prefill(call, unit, thread);
    const Layout& layout = context_->layout;
    const Kernels& kernels = context_->kernels;
    const bool dot = layout.kv == Format::bfloat16 && layout.io == Format::bfloat16 && kernels.decode_bfloat16_dot;
    const auto attend = dot ? kernels.decode_bfloat16_dot : kernels.decode[int(layout.kv)];
    const DecodeSpan span = decode_span(call, unit, thread);
    if (next && next->rows == 0) {
        const DecodeSpan following = decode_span(call, *next, thread);
        attend(span, &following);
    } else {
        attend(span, nullptr);
    }
    if (unit.cut < 0) return merge(call, unit.row, unit.kv_head, unit.kv_heads, span.partials, 1);
    std::atomic<int>& left = call.schedule.left[size_t(unit.cut)];
    if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    const Cut& cut = call.schedule.cuts[size_t(unit.cut)];
    left.store(cut.units, std::memory_order_relaxed);  // for the next layer
    const float* partials = call.schedule.partials.data() + partials_of(cut.first_piece, 0);
    merge(call, cut.row, 0, layout.kv_heads, partials, cut.pieces);
}

// `partials`: the first piece's, of the first KV head.
void AttentionPlan::merge(const Call& call, int64_t row, int kv_head, int kv_heads, const float* partials,
                          int count) const {
    const Layout& layout = context_->layout;
    for (int i = 0; i < kv_heads; ++i, partials += partial_floats(layout.group(), layout.dim)) {
        char* const out = call.outputs + element(row, kv_head + i) * size_of(layout.io);
        context_->kernels.merge[int(layout.kv)](partials, count, partials_of(1, 0), layout.group(), layout.dim,
                                                layout.io, out);
    }
}

// Where a piece's partial of a KV head lies, in floats.
ptrdiff_t AttentionPlan::partials_of(int piece, int kv_head) const {
    const Layout& layout = context_->layout;
    return (ptrdiff_t(piece) * layout.kv_heads + kv_head) * partial_floats(layout.group(), layout.dim);
}

// Where a row's first query head of a KV head lies in queries and outputs.
ptrdiff_t AttentionPlan::element(int64_t row, int kv_head) const {
    const Layout& layout = context_->layout;
    return ptrdiff_t(row * layout.heads + kv_head * layout.group()) * layout.dim;
}

DecodeSpan AttentionPlan::decode_span(const Call& call, const Unit& unit, int thread) const {
    const Layout& layout = context_->layout;
    float* const partials = unit.cut < 0
                                ? context_->partial(thread)
                                : call.schedule.partials.data() + partials_of(unit.piece, unit.kv_head);
    return {layout.pages_of(call.layer, unit.kv_head), page_ids_.data() + unit.table, unit.first, unit.last,
            layout.tile_tokens(), unit.kv_heads, layout.group(),
            call.queries + element(unit.row, unit.kv_head) * size_of(layout.io), layout.io, layout.scale, layout.softcap, context_->queries(thread), partials};
}

void AttentionPlan::prefill(const Call& call, const Unit& unit, int thread) const {
    const Layout& layout = context_->layout;
    const ptrdiff_t bytes = element(unit.row, unit.kv_head) * size_of(layout.io);
    context_->kernels.prefill[int(layout.kv)]({
        layout.pages_of(call.layer, unit.kv_head), page_ids_.data() + unit.table, unit.rows, layout.group(),
        unit.first, call.schedule.window > 0 ? call.schedule.window : INT_MAX, call.queries + bytes,
        call.outputs + bytes, ptrdiff_t(layout.heads) * layout.dim, layout.io, layout.scale, layout.softcap,
        context_->prefill(thread)});
}

}  // namespace tandem
