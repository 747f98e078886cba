#include "step.h"

#include <cstring>
#include <stdexcept>
#include <utility>

#include "instruction_sets.h"

namespace tandem {

namespace {

void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

void check_linear(const StepLinear& linear, int inputs, int outputs) {
    require(linear.matrix && linear.matrix->inputs() == inputs && linear.matrix->outputs() == outputs,
            "a matrix has another shape than the model");
    require(linear.bias.empty() || linear.bias.size() == size_t(outputs), "a bias has another width than its matrix");
}

void check_norm(const std::vector<float>& weight, int width, bool optional) {
    require((optional && weight.empty()) || weight.size() == size_t(width), "a norm has another width than the model");
}

void check_layer(const StepModel& model, const StepLayer& layer) {
    check_linear(layer.qkv, model.hidden, model.qkv_width());
    check_linear(layer.output, model.attention_width(), model.hidden);
    check_linear(layer.gate_up, model.hidden, 2 * model.inner);
    check_linear(layer.down, model.inner, model.hidden);
    check_norm(layer.input_norm, model.hidden, false);
    check_norm(layer.mlp_input_norm, model.hidden, false);
    check_norm(layer.attention_norm, model.hidden, true);
    check_norm(layer.mlp_norm, model.hidden, true);
    check_norm(layer.query_norm, model.dim, true);
    check_norm(layer.key_norm, model.dim, true);
}

StepModel checked(StepModel model) {
    require(!model.layers.empty(), "a model needs a layer");
    for (const StepLayer& layer : model.layers) check_layer(model, layer);
    check_norm(model.final_norm, model.hidden, false);
    check_linear({model.embedding, {}}, model.hidden, model.embedding ? model.embedding->outputs() : 0);
    check_linear({model.head, {}}, model.hidden, model.embedding->outputs());
    require(int(model.full_frequencies.size()) * 2 == model.dim, "a rotation has another width than a head");
    require(model.sliding_frequencies.empty() || model.sliding_frequencies.size() == model.full_frequencies.size(),
            "the rotations have different widths");
    return model;
}

}  // namespace

Step::Step(std::shared_ptr<ThreadPool> pool, const std::string& instruction_set, StepModel model)
    : pool_(std::move(pool)),
      kernels_(kernels_named(instruction_set).step),
      model_(checked(std::move(model))),
      prepared_(instruction_set),
      full_(model_.full_frequencies),
      sliding_(model_.sliding_frequencies),
      scratch_width_((std::max({model_.hidden, model_.inner, model_.dim}) + 15) / 16 * 16) {}

void Step::run(AttentionPlan& plan, const StepRows& rows, float* logits) {
    check(plan, rows);
    const ThreadPool::Awake awake(*pool_);
    rows_ = rows.count;
    make_room(std::max(rows.count, rows.sampled));
    embed(rows);
    const std::vector<float>* output_norm = nullptr;  // of what the layer before adds to the residual
    const int last = int(model_.layers.size()) - 1;
    for (int index = 0; index <= last; ++index) {
        const StepLayer& layer = model_.layers[size_t(index)];
        add_and_norm(output_norm, layer.input_norm, *layer.qkv.matrix);
        multiply(layer.qkv, qkv_.data(), model_.qkv_width());
        rotate_and_append(plan, index);
        if (index == last && rows.sampled == 0) return;
        plan.attend(index, queries_.data(), attended_.data());
        // What follows the last append serves the logits alone: no other rows need it.
        if (index == last) keep_sampled(rows);
        finish_layer(layer);
        output_norm = &layer.mlp_norm;
    }
    add_and_norm(output_norm, model_.final_norm, *model_.head);
    model_.head->multiply(prepared_, logits, model_.head->outputs(), nullptr, *pool_);
}

void Step::check(const AttentionPlan& plan, const StepRows& rows) const {
    const Layout& layout = plan.layout();
    require(layout.layers == int(model_.layers.size()) && layout.heads == model_.heads &&
                layout.kv_heads == model_.kv_heads && layout.dim == model_.dim && layout.io == Format::float32,
            "the attention plan is another model's");
    require(plan.rows() == rows.count, "the attention plan is for other rows");
    for (int64_t i = 0; i < rows.count; ++i)
        require(rows.token_ids[i] >= 0 && rows.token_ids[i] < model_.embedding->outputs(), "there is no such token");
    for (int64_t i = 0; i < rows.sampled; ++i)
        require(rows.sample_rows[i] >= 0 && rows.sample_rows[i] < rows.count, "there is no such row to sample");
}

void Step::make_room(int64_t rows) {
    auto room = [rows](Floats& floats, int width) { floats.room(size_t(rows) * size_t(width)); };
    room(residual_, model_.hidden);
    room(added_, model_.hidden);
    room(qkv_, model_.qkv_width());
    room(queries_, model_.attention_width());
    room(attended_, model_.attention_width());
    room(gate_up_, 2 * model_.inner);
    scratch_.room(size_t(pool_->threads() * scratch_width_));
    full_.resize(rows);
    sliding_.resize(rows);
}

void Step::embed(const StepRows& rows) {
    each_row(*pool_, rows_, model_.hidden + 16 * model_.dim, [&](int64_t row, int) {
        float* const residual = residual_.data() + row * model_.hidden;
        model_.embedding->rows(rows.token_ids + row, 1, residual);
        if (model_.embedding_scale != 1.0f) kernels_.scale(model_.embedding_scale, model_.hidden, residual);
        full_.set(row, rows.positions[row]);
        sliding_.set(row, rows.positions[row]);
    });
}

void Step::multiply(const StepLinear& linear, float* out, int width) {
    linear.matrix->multiply(prepared_, out, width, linear.bias_or_null(), *pool_);
}

// Adds what the product before has given, normed if need be, to the residual, and makes the next product's input.
void Step::add_and_norm(const std::vector<float>* output_norm, const std::vector<float>& norm, const Matrix& next) {
    const int hidden = model_.hidden;
    prepared_.resize(rows_, hidden, next.forms());
    each_row(*pool_, rows_, 4 * hidden, [&](int64_t row, int thread) {
        float* const residual = residual_.data() + row * hidden;
        float* const normed = scratch_.data() + thread * scratch_width_;
        if (output_norm) {
            float* const added = added_.data() + row * hidden;
            if (!output_norm->empty()) kernels_.rms_norm(added, output_norm->data(), model_.eps, hidden, added);
            kernels_.add(added, hidden, residual);
        }
        kernels_.rms_norm(residual, norm.data(), model_.eps, hidden, normed);
        prepared_.prepare_row(row, normed);
    });
}

void Step::rotate_and_append(const AttentionPlan& plan, int index) {
    const StepLayer& layer = model_.layers[size_t(index)];
    const Rotations& rotations = layer.sliding && sliding_.half() > 0 ? sliding_ : full_;
    const int dim = model_.dim;
    auto rotate = [&](float* head, const std::vector<float>& norm, int64_t row, float* out) {
        if (!norm.empty()) kernels_.rms_norm(head, norm.data(), model_.eps, dim, head);
        kernels_.rotate(head, rotations.cosines(row), rotations.sines(row), dim, out);
    };
    each_row(*pool_, rows_, 2 * model_.qkv_width(), [&](int64_t row, int) {
        float* head = qkv_.data() + row * model_.qkv_width();
        float* query = queries_.data() + row * model_.attention_width();
        for (int i = 0; i < model_.heads; ++i, head += dim, query += dim) rotate(head, layer.query_norm, row, query);
        const float* const kv = head;
        for (int i = 0; i < model_.kv_heads; ++i, head += dim) rotate(head, layer.key_norm, row, head);
        plan.append_row(index, row, kv);
    });
}

void Step::keep_sampled(const StepRows& rows) {
    const int hidden = model_.hidden, width = model_.attention_width();
    float* const residual = kept_.room(size_t(rows.sampled) * size_t(hidden));
    float* const attended = kept_attended_.room(size_t(rows.sampled) * size_t(width));
    for (int64_t i = 0; i < rows.sampled; ++i) {
        const int64_t row = rows.sample_rows[i];
        std::memcpy(residual + i * hidden, residual_.data() + row * hidden, sizeof(float) * size_t(hidden));
        std::memcpy(attended + i * width, attended_.data() + row * width, sizeof(float) * size_t(width));
    }
    std::swap(residual_, kept_);
    std::swap(attended_, kept_attended_);
    rows_ = rows.sampled;
}

// From attention's output to what the MLP adds.
void Step::finish_layer(const StepLayer& layer) {
    const int width = model_.attention_width(), inner = model_.inner;
    prepared_.resize(rows_, width, layer.output.matrix->forms());
    each_row(*pool_, rows_, 2 * width,
             [&](int64_t row, int) { prepared_.prepare_row(row, attended_.data() + row * width); });
    multiply(layer.output, added_.data(), model_.hidden);
    add_and_norm(&layer.attention_norm, layer.mlp_input_norm, *layer.gate_up.matrix);
    multiply(layer.gate_up, gate_up_.data(), 2 * inner);
    prepared_.resize(rows_, inner, layer.down.matrix->forms());
    const auto gate = kernels_.gate[int(model_.activation)];
    each_row(*pool_, rows_, 4 * inner, [&](int64_t row, int thread) {
        const float* const gates = gate_up_.data() + row * 2 * inner;
        float* const gated = scratch_.data() + thread * scratch_width_;
        gate(gates, gates + inner, inner, gated);
        prepared_.prepare_row(row, gated);
    });
    multiply(layer.down, added_.data(), model_.hidden);
}

}  // namespace tandem
