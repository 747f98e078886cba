// One iteration of a model, from token ids to logits: a few phases a layer, each shared by the pool's threads.
//
// The residual stream is float32. What a row's result is depends neither on the other rows nor on the threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention_plan.h"
#include "each_row.h"
#include "floats.h"
#include "rotations.h"
#include "step_layer.h"

namespace tandem {

struct StepRows {
    int64_t count;
    const int64_t* token_ids;  // [count]
    const int64_t* positions;  // [count]
    int64_t sampled;
    const int64_t* sample_rows;  // [sampled]
};

class Step {
public:
    // Throws std::invalid_argument if the parts don't fit together.
    Step(std::shared_ptr<ThreadPool> pool, const std::string& instruction_set, StepModel model);
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

    // Leaves the rows' keys and values in the plan's pages and writes the logits of the sampled ones, [sampled]
    // [vocabulary]. The plan is prepared for the same rows, in float32. One call at a time. Allocates only for
    // more rows than ever before. Throws std::invalid_argument for rows that can't be.
    void run(AttentionPlan& plan, const StepRows& rows, float* logits);

private:
    void check(const AttentionPlan& plan, const StepRows& rows) const;
    void make_room(int64_t rows);
    void embed(const StepRows& rows);
    void keep_sampled(const StepRows& rows);
    void finish_layer(const StepLayer& layer);
    void rotate_and_append(const AttentionPlan& plan, int layer);
    void add_and_norm(const std::vector<float>* output_norm, const std::vector<float>& norm, const Matrix& next);
    void multiply(const StepLinear& linear, float* out, int width);

    const std::shared_ptr<ThreadPool> pool_;
    const StepKernels& kernels_;
    const StepModel model_;
    int64_t rows_ = 0;  // that are worked on
    PreparedRows prepared_;
    Rotations full_, sliding_;
    Floats residual_, kept_;             // [rows][hidden]
    Floats added_;                       // [rows][hidden]: to the residual, next
    Floats qkv_;                         // [rows][qkv_width]
    Floats queries_, attended_, kept_attended_;  // [rows][attention_width]
    Floats gate_up_;                     // [rows][2 * inner]
    Floats scratch_;                     // [threads][scratch_width_]
    ptrdiff_t scratch_width_;
};

}  // namespace tandem
