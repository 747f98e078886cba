#include "prepared_rows.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <stdexcept>

namespace tandem {

namespace {

constexpr int64_t kSmall = 16 * 1024;  // activations that are not worth waking another thread
constexpr int64_t kRowsTogether = 4;   // that a thread takes at once

struct Preparing {
    PreparedRows& prepared;
    const Rows& rows;
    std::atomic<int64_t> next{0};
};

void prepare_some(void* argument, int) {
    Preparing& call = *static_cast<Preparing*>(argument);
    for (int64_t first; (first = call.next.fetch_add(kRowsTogether)) < call.rows.count;) {
        const int64_t last = std::min(first + kRowsTogether, call.rows.count);
        for (int64_t row = first; row < last; ++row)
            call.prepared.prepare_row(row, call.rows.values + row * call.rows.stride);
    }
}

template <class Element, class Pointer>
void make_room(Pointer& memory, size_t& room, size_t wanted) {
    if (room >= wanted) return;
    memory.reset();
    room = 0;
    memory.reset(static_cast<Element*>(std::aligned_alloc(alignof(Element), wanted * sizeof(Element))));
    if (!memory) throw std::bad_alloc();
    room = wanted;
}

}  // namespace

PreparedRows::PreparedRows(const std::string& instruction_set) : kernels_(dense_kernels_named(instruction_set)) {}

void PreparedRows::resize(int64_t rows, int inputs, int forms) {
    if (rows < 0 || inputs < 1) throw std::invalid_argument("activations need rows and inputs");
    rows_ = 0;  // should memory be short
    blocks_ = (inputs + kBlockInputs - 1) / kBlockInputs;
    const size_t blocks = size_t(rows) * size_t(blocks_);
    if (forms & kIntegerForm) make_room<ActivationBlock>(integers_, integer_room_, blocks);
    if (forms & kFloatForm) make_room<ActivationLine>(floats_, float_room_, 2 * blocks);
    rows_ = rows;
    inputs_ = inputs;
    forms_ = forms;
}

void PreparedRows::prepare_row(int64_t row, const float* values) {
    const int64_t group = row / kGroupRows;
    const int stride = group_rows(group);
    if (forms_ & kIntegerForm)
        kernels_.quantise(values, inputs_, integers_.get() + group * kGroupRows * blocks_ + row % kGroupRows, stride);
    if (!(forms_ & kFloatForm)) return;
    constexpr int width = kBlockInputs / 2;
    ActivationLine* line = floats_.get() + 2 * group * kGroupRows * blocks_ + row % kGroupRows;
    for (int i = 0; i < 2 * blocks_; ++i, line += stride) {
        const int count = std::min(std::max(inputs_ - i * width, 0), width);
        if (count < width) std::memset(line, 0, sizeof *line);
        if (count > 0) std::memcpy(line, values + i * width, size_t(count) * sizeof(float));
    }
}

void PreparedRows::prepare(const Rows& rows, int inputs, int forms, ThreadPool& pool) {
    resize(rows.count, inputs, forms);
    Preparing call{*this, rows};
    pool.run(prepare_some, &call, rows.count * inputs < kSmall);
}

void PreparedRows::dequantise(int64_t row, float* out) const {
    if (row < 0 || row >= rows_ || !(forms_ & kIntegerForm)) throw std::out_of_range("there is no such row");
    const int64_t group = row / kGroupRows;
    for (int i = 0; i < inputs_; ++i) {
        const ActivationBlock& block =
            integers(group)[ptrdiff_t(i / kBlockInputs) * group_rows(group) + row % kGroupRows];
        out[i] = block.scale * float(block.codes[i % kBlockInputs]);
    }
}

}  // namespace tandem
