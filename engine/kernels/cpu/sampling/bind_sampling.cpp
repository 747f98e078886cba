// Sampling's part of the Python seam.
#include <stdexcept>

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "batch_sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tandem {

namespace {

void sample(BatchSampler& sampler, uintptr_t logits, size_t stride, size_t rows, size_t vocabulary,
            const nb::bytes& specs, uintptr_t added_ids, uintptr_t additions, uintptr_t history, uintptr_t tokens,
            uintptr_t logprobs, uintptr_t top_ids, uintptr_t top_logprobs, size_t width) {
    if (specs.size() != rows * sizeof(RowSpec)) throw std::invalid_argument("specs and rows differ in number");
    const LogitRows all{pointer<const float>(logits),
                        stride,
                        rows,
                        vocabulary,
                        reinterpret_cast<const RowSpec*>(specs.c_str()),
                        {pointer<const int64_t>(added_ids), pointer<const double>(additions),
                         pointer<const int64_t>(history)},
                        pointer<int64_t>(tokens),
                        pointer<double>(logprobs),
                        pointer<int64_t>(top_ids),
                        pointer<double>(top_logprobs),
                        width};
    const nb::gil_scoped_release released;
    sampler.sample(all);
}

}  // namespace

void bind_sampling(nb::module_& module) {
    nb::class_<BatchSampler>(module, "BatchSampler")
        .def(nb::init<std::shared_ptr<ThreadPool>, const std::string&>(), "pool"_a, "instruction_set"_a)
        .def("sample", &sample, "logits"_a, "stride"_a, "rows"_a, "vocabulary"_a, "specs"_a, nb::kw_only(),
             "added_ids"_a, "additions"_a, "history"_a, "tokens"_a, "logprobs"_a, "top_ids"_a, "top_logprobs"_a,
             "width"_a);
}

}  // namespace tandem
