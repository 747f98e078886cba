// Activations as the products want them.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "dense_kernels.h"
#include "thread_pool.h"

namespace tandem {

// Float activations, [count][inputs].
struct Rows {
    int64_t count;
    const float* values;
    ptrdiff_t stride;  // floats from a row to the next one
};

// The forms of activations that a matrix reads, bits of a set.
enum Forms : int { kIntegerForm = 1, kFloatForm = 2 };

// Memory is kept, and used again. Rows lie in groups of kGroupRows, the last one with what is left:
// [group][block][row].
class PreparedRows {
public:
    explicit PreparedRows(const std::string& instruction_set);
    PreparedRows(const PreparedRows&) = delete;
    PreparedRows& operator=(const PreparedRows&) = delete;

    // Makes room. Call it, then prepare_row() for every row, in any order and on any threads; or prepare().
    void resize(int64_t rows, int inputs, int forms);
    void prepare_row(int64_t row, const float* values);
    void prepare(const Rows& rows, int inputs, int forms, ThreadPool& pool);

    int64_t rows() const { return rows_; }
    int inputs() const { return inputs_; }
    int forms() const { return forms_; }
    int blocks() const { return blocks_; }
    int group_rows(int64_t group) const {
        return int(rows_ - group * kGroupRows < kGroupRows ? rows_ - group * kGroupRows : kGroupRows);
    }
    const ActivationBlock* integers(int64_t group) const { return integers_.get() + group * kGroupRows * blocks_; }
    const ActivationLine* floats(int64_t group) const { return floats_.get() + 2 * group * kGroupRows * blocks_; }

    // What the integer form of a row stands for, [inputs].
    void dequantise(int64_t row, float* out) const;

private:
    struct Free {
        void operator()(void* memory) const { std::free(memory); }
    };
    const DenseKernels& kernels_;
    int64_t rows_ = 0;
    int inputs_ = 0, blocks_ = 0, forms_ = 0;
    size_t integer_room_ = 0, float_room_ = 0;  // elements
    std::unique_ptr<ActivationBlock[], Free> integers_;
    std::unique_ptr<ActivationLine[], Free> floats_;
};

}  // namespace tandem
