// What an instruction set implements for a step besides products and attention: one row, or one head, a call.
#pragma once

namespace tandem {

enum class Activation : int { silu = 0, gelu_tanh = 1 };
constexpr int kActivations = 2;

struct StepKernels {
    // x / rms(x) * weight; `out` may be x.
    void (*rms_norm)(const float* x, const float* weight, float eps, int width, float* out);
    void (*add)(const float* x, int width, float* sum);
    void (*scale)(float factor, int width, float* x);
    // Turns the pairs (i, i + dim / 2) by the angles whose cosines and sines are given, [dim / 2].
    void (*rotate)(const float* head, const float* cosines, const float* sines, int dim, float* out);
    void (*gate[kActivations])(const float* gate, const float* up, int width, float* out);  // act(gate) * up
};

}  // namespace tandem
