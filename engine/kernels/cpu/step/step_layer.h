// What a step is built from: a model's weights and shape.
#pragma once

#include <memory>
#include <vector>

#include "dense/matrix.h"
#include "step_kernels.h"

namespace tandem {

struct StepLinear {
    std::shared_ptr<const Matrix> matrix;
    std::vector<float> bias;  // empty: none

    const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
};

// Norms are weights; an empty one is not there.
struct StepLayer {
    StepLinear qkv, output, gate_up, down;
    std::vector<float> input_norm, query_norm, key_norm;
    std::vector<float> mlp_input_norm;
    std::vector<float> attention_norm, mlp_norm;  // of what is added to the residual
    bool sliding = false;
};

struct StepModel {
    int hidden, heads, kv_heads, dim, inner;
    float eps;
    Activation activation;
    std::shared_ptr<const Matrix> embedding;
    float embedding_scale;
    std::vector<StepLayer> layers;
    std::vector<float> final_norm;
    std::shared_ptr<const Matrix> head;
    std::vector<float> full_frequencies, sliding_frequencies;  // the latter empty: the same

    int qkv_width() const { return (heads + 2 * kv_heads) * dim; }
    int attention_width() const { return heads * dim; }
};

}  // namespace tandem
