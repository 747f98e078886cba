#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings.h"
#include "matrix.h"
#include "pack.h"
#include "prepared_rows.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tandem {

namespace {

using Source = std::tuple<int, int, uintptr_t, uintptr_t>;  // format, outputs, rows, order

std::shared_ptr<Matrix> make_matrix(int inputs, const std::vector<Source>& sources, const std::string& instruction_set,
                                    const std::shared_ptr<ThreadPool>& pool) {
    const nb::gil_scoped_release released;
    std::vector<WeightSource> all;
    for (const auto& [format, outputs, rows, order] : sources)
        all.push_back({WeightFormat(format), outputs, pointer<const void>(rows), pointer<const int64_t>(order)});
    return std::make_shared<Matrix>(inputs, all, instruction_set, *pool);
}

void apply(const Matrix& matrix, PreparedRows& prepared, uintptr_t values, int64_t count, ptrdiff_t stride,
           uintptr_t out, ptrdiff_t out_stride, uintptr_t bias, ThreadPool& pool) {
    prepared.prepare({count, pointer<const float>(values), stride}, matrix.inputs(), matrix.forms(), pool);
    matrix.multiply(prepared, pointer<float>(out), out_stride, pointer<const float>(bias), pool);
}

}  // namespace

void bind_dense(nb::module_& module) {
    const auto released = nb::call_guard<nb::gil_scoped_release>();
    module.def(
        "quantise_weights",
        [](int format, uintptr_t values, size_t count, uintptr_t blocks) {
            quantise_weights(WeightFormat(format), pointer<const float>(values), count, pointer<void>(blocks));
        },
        "format"_a, "values"_a, "count"_a, "blocks"_a, released);

    nb::class_<PreparedRows>(module, "PreparedRows")
        .def(nb::new_([](const std::string& instruction_set) {
                 return std::make_shared<PreparedRows>(instruction_set);
             }),
             "instruction_set"_a)
        .def(
            "dequantise",
            [](const PreparedRows& self, int64_t row, uintptr_t out) { self.dequantise(row, pointer<float>(out)); },
            "row"_a, "out"_a, released);

    nb::class_<Matrix>(module, "Matrix")
        .def(nb::new_(&make_matrix), "inputs"_a, "sources"_a, "instruction_set"_a, "pool"_a)
        .def_prop_ro("outputs", &Matrix::outputs)
        .def_prop_ro("inputs", &Matrix::inputs)
        .def_prop_ro("bytes", &Matrix::bytes)
        .def(
            "multiply",
            [](const Matrix& self, const PreparedRows& rows, uintptr_t out, ptrdiff_t out_stride, uintptr_t bias,
               ThreadPool& pool) {
                self.multiply(rows, pointer<float>(out), out_stride, pointer<const float>(bias), pool);
            },
            "rows"_a, "out"_a, "out_stride"_a, "bias"_a, "pool"_a, released)
        .def("apply", &apply, "prepared"_a, "values"_a, "count"_a, "stride"_a, "out"_a, "out_stride"_a, "bias"_a,
             "pool"_a, released)
        .def(
            "rows",
            [](const Matrix& self, uintptr_t ids, int64_t count, uintptr_t out) {
                self.rows(pointer<const int64_t>(ids), count, pointer<float>(out));
            },
            "ids"_a, "count"_a, "out"_a, released);
}

}  // namespace tandem
