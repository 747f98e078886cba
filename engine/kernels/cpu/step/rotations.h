// Cosines and sines of an iteration's rows, computed once for all layers.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "floats.h"

namespace tandem {

class Rotations {
public:
    // Angles a position: [dim / 2].
    explicit Rotations(std::vector<float> frequencies) : frequencies_(std::move(frequencies)) {}

    int half() const { return int(frequencies_.size()); }
    void resize(int64_t rows) {
        cosines_.room(size_t(rows) * frequencies_.size());
        sines_.room(size_t(rows) * frequencies_.size());
    }
    void set(int64_t row, int64_t position) {
        float* const cosines = cosines_.data() + row * half();
        float* const sines = sines_.data() + row * half();
        for (int i = 0; i < half(); ++i) {
            const float angle = float(position) * frequencies_[size_t(i)];
            cosines[i] = std::cos(angle);
            sines[i] = std::sin(angle);
        }
    }
    const float* cosines(int64_t row) const { return cosines_.data() + row * half(); }
    const float* sines(int64_t row) const { return sines_.data() + row * half(); }

private:
    std::vector<float> frequencies_;
    Floats cosines_, sines_;
};

}  // namespace tandem
