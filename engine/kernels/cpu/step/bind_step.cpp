#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "step.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tandem {

namespace {

using Weights = std::vector<float>;

Activation activation(int code) {
    if (code < 0 || code >= kActivations) throw std::invalid_argument("there is no such activation");
    return Activation(code);
}

}  // namespace

void bind_step(nb::module_& module) {
    nb::class_<StepLinear>(module, "StepLinear")
        .def(
            "__init__",
            [](StepLinear* self, std::shared_ptr<Matrix> matrix, Weights bias) {
                new (self) StepLinear{std::move(matrix), std::move(bias)};
            },
            "matrix"_a, "bias"_a);

    nb::class_<StepLayer>(module, "StepLayer")
        .def(
            "__init__",
            [](StepLayer* self, StepLinear qkv, StepLinear output, StepLinear gate_up, StepLinear down,
               Weights input_norm, Weights query_norm, Weights key_norm, Weights attention_norm,
               Weights mlp_input_norm, Weights mlp_norm, bool sliding) {
                StepLayer& layer = *new (self) StepLayer;
                layer.qkv = std::move(qkv);
                layer.output = std::move(output);
                layer.gate_up = std::move(gate_up);
                layer.down = std::move(down);
                layer.input_norm = std::move(input_norm);
                layer.query_norm = std::move(query_norm);
                layer.key_norm = std::move(key_norm);
                layer.attention_norm = std::move(attention_norm);
                layer.mlp_input_norm = std::move(mlp_input_norm);
                layer.mlp_norm = std::move(mlp_norm);
                layer.sliding = sliding;
            },
            nb::kw_only(), "qkv"_a, "output"_a, "gate_up"_a, "down"_a, "input_norm"_a, "query_norm"_a, "key_norm"_a,
            "attention_norm"_a, "mlp_input_norm"_a, "mlp_norm"_a, "sliding"_a);

    nb::class_<Step>(module, "Step")
        .def(nb::new_([](std::shared_ptr<ThreadPool> pool, const std::string& instruction_set, int hidden, int heads,
                         int kv_heads, int dim, int inner, float eps, int activation_code,
                         std::shared_ptr<Matrix> embedding, float embedding_scale, std::vector<StepLayer> layers,
                         Weights final_norm, std::shared_ptr<Matrix> head, Weights full_frequencies,
                         Weights sliding_frequencies) {
                 return std::make_shared<Step>(
                     std::move(pool), instruction_set,
                     StepModel{hidden, heads, kv_heads, dim, inner, eps, activation(activation_code),
                               std::move(embedding), embedding_scale, std::move(layers), std::move(final_norm),
                               std::move(head), std::move(full_frequencies), std::move(sliding_frequencies)});
             }),
             "pool"_a, "instruction_set"_a, nb::kw_only(), "hidden"_a, "heads"_a, "kv_heads"_a, "dim"_a, "inner"_a,
             "eps"_a, "activation"_a, "embedding"_a, "embedding_scale"_a, "layers"_a, "final_norm"_a, "head"_a,
             "full_frequencies"_a, "sliding_frequencies"_a)
        .def(
            "run",
            [](Step& self, AttentionPlan& plan, int64_t rows, uintptr_t token_ids, uintptr_t positions,
               int64_t sampled, uintptr_t sample_rows, uintptr_t logits) {
                self.run(plan,
                         {rows, pointer<const int64_t>(token_ids), pointer<const int64_t>(positions), sampled,
                          pointer<const int64_t>(sample_rows)},
                         pointer<float>(logits));
            },
            "plan"_a, "rows"_a, "token_ids"_a, "positions"_a, "sampled"_a, "sample_rows"_a, "logits"_a,
            nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace tandem
