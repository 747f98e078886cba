// Products with packed weights, for sanitizers and emulated processors, against double precision.
#include "native_dense_tests.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "instruction_sets.h"
#include "matrix.h"
#include "pack.h"
#include "prepared_rows.h"

namespace {

using namespace tandem;

constexpr WeightFormat kWeights[] = {
    WeightFormat::float32, WeightFormat::float16, WeightFormat::bfloat16, WeightFormat::q4_0,
    WeightFormat::q4_1,    WeightFormat::q5_0,    WeightFormat::q5_1,     WeightFormat::q8_0,
    WeightFormat::q4_k,    WeightFormat::q5_k,    WeightFormat::q6_k};
constexpr int kOutputs = 21;

// Any bits, but numbers of float16 and bfloat16 that are less than 2.
std::vector<char> random_rows(WeightFormat format, int outputs, int inputs) {
    std::mt19937 random(1);
    const WeightLayout layout = layout_of(format);
    const int blocks = (inputs + layout.super_inputs() - 1) / layout.super_inputs();
    const int row_bytes = layout.integers ? blocks * layout.source_bytes : inputs * layout.bits / 8;
    std::vector<char> bytes(size_t(outputs) * size_t(row_bytes));
    for (char& byte : bytes) byte = char(random());
    auto tame = [](char& byte) { byte = char(byte & 0xbf); };  // the upper byte of a number
    if (!layout.integers) {
        for (size_t i = size_t(layout.bits / 8) - 1; i < bytes.size(); i += size_t(layout.bits / 8)) tame(bytes[i]);
        return bytes;
    }
    for (size_t i = 0; i < bytes.size(); i += size_t(layout.source_bytes)) {
        tame(bytes[i + (format == WeightFormat::q6_k ? 209 : 1)]);
        if (layout.minima) tame(bytes[i + 3]);
    }
    return bytes;
}

std::vector<float> random_floats(size_t count) {
    std::mt19937 random(2);
    std::vector<float> values(count);
    for (float& value : values) value = float(int32_t(random())) * 0x1p-31f;
    return values;
}

struct Product {
    Product(WeightFormat format, int inputs, const std::string& set, int threads)
        : pool(std::make_shared<ThreadPool>(threads, std::vector<int>(), 20)),
          source(random_rows(format, kOutputs, inputs)),
          matrix(inputs, {{format, kOutputs, source.data(), nullptr}}, set, *pool),
          prepared(set) {}

    std::vector<float> operator()(const std::vector<float>& values, int rows) {
        std::vector<float> out(size_t(rows * kOutputs), NAN);
        prepared.prepare({rows, values.data(), matrix.inputs()}, matrix.inputs(), matrix.forms(), *pool);
        matrix.multiply(prepared, out.data(), kOutputs, nullptr, *pool);
        return out;
    }

    std::shared_ptr<ThreadPool> pool;
    std::vector<char> source;
    Matrix matrix;
    PreparedRows prepared;
};

bool right(Product& product, const std::vector<float>& values, int rows, const std::vector<float>& out) {
    const auto inputs = size_t(product.matrix.inputs());
    std::vector<float> weights(kOutputs * inputs), x(values.begin(), values.begin() + ptrdiff_t(size_t(rows) * inputs));
    std::vector<int64_t> ids(kOutputs);
    for (size_t i = 0; i < kOutputs; ++i) ids[i] = int64_t(i);
    product.matrix.rows(ids.data(), kOutputs, weights.data());
    if (product.matrix.forms() & kIntegerForm)
        for (int row = 0; row < rows; ++row) product.prepared.dequantise(row, x.data() + size_t(row) * inputs);
    double largest = 0.0;  // codes and minima may cancel each other
    for (const float weight : weights) largest = std::max(largest, double(std::abs(weight)));
    for (size_t row = 0; row < size_t(rows); ++row) {
        for (size_t output = 0; output < kOutputs; ++output) {
            double sum = 0.0, magnitude = 0.0;
            for (size_t i = 0; i < inputs; ++i) {
                sum += double(x[row * inputs + i]) * double(weights[output * inputs + i]);
                magnitude += std::abs(double(x[row * inputs + i])) * largest * 2;
            }
            if (!(std::abs(sum - double(out[row * kOutputs + output])) <= magnitude * 0x1p-20)) return false;
        }
    }
    return true;
}

void check_format(const Expect& expect, const std::string& set, WeightFormat format) {
    const std::string what = set + ", weights of format " + std::to_string(int(format));
    for (const int inputs : {256, layout_of(format).integers ? layout_of(format).super_inputs() : 37}) {
        const std::vector<float> values = random_floats(size_t(17 * inputs));
        Product alone(format, inputs, set, 1), together(format, inputs, set, 3);
        for (const int rows : {1, 3, 8, 17}) {
            const std::vector<float> out = alone(values, rows), same = together(values, rows);
            expect(right(alone, values, rows, out), what);
            expect(std::memcmp(out.data(), same.data(), out.size() * sizeof(float)) == 0, what + ", threads");
        }
    }
    std::vector<float> poisoned = random_floats(256);
    poisoned[3] = NAN, poisoned[100] = INFINITY, poisoned[200] = 1e38f;
    Product product(format, 256, set, 1);
    for (const float value : product(poisoned, 1)) expect(!std::isfinite(value), what + ", not finite");
}

void check_rounding(const Expect& expect) {
    std::vector<float> values = random_floats(64);
    values[40] = NAN, values[41] = 1e38f;
    for (const WeightFormat format : {WeightFormat::q8_0, WeightFormat::q4_0, WeightFormat::q4_1}) {
        std::vector<char> blocks(size_t(2 * layout_of(format).source_bytes));
        quantise_weights(format, values.data(), values.size(), blocks.data());
        ThreadPool pool(1, {}, 0);
        const Matrix matrix(64, {{format, 1, blocks.data(), nullptr}}, "scalar", pool);
        const int64_t id = 0;
        std::vector<float> back(64);
        matrix.rows(&id, 1, back.data());
        const float step = format == WeightFormat::q8_0 ? 0.005f : 0.15f;
        for (size_t i = 0; i < 32; ++i) expect(std::abs(back[i] - values[i]) <= step, "rounded weights");
        expect(!std::isfinite(back[40]), "rounded weights that are not finite");
    }
}

}  // namespace

void check_dense(const Expect& expect) {
    for (const Kernels* kernels : available_kernels())
        for (const WeightFormat format : kWeights) check_format(expect, kernels->name, format);
    check_rounding(expect);
}
