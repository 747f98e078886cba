// The Python seam: integers and raw pointers in, nothing of Python touched while kernels run.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "attention_context.h"
#include "attention_driver.h"
#include "attention_plan.h"
#include "bindings.h"
#include "host_memory.h"
#include "instruction_sets.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace tandem;

namespace {

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const Kernels* kernels : available_kernels()) names.emplace_back(kernels->name);
    return names;
}

// Objects that others share are made by make_shared: a Python object would have to be let go of with the
// interpreter's lock, which the driver's thread must never wait for.
std::shared_ptr<AttentionContext> make_context(std::shared_ptr<ThreadPool> pool, const std::string& instruction_set,
                                               int layers, int heads, int kv_heads, int dim, int page_size,
                                               int kv_format, int io_format, float scale, float softcap,
                                               std::vector<int> windows, uintptr_t pages, int64_t num_pages) {
    auto format = [](int code) {
        if (code < 0 || code >= kFormats) throw std::invalid_argument("there is no such format");
        return Format(code);
    };
    return std::make_shared<AttentionContext>(
        std::move(pool), instruction_set,
        Layout{layers, heads, kv_heads, dim, page_size, format(kv_format), format(io_format), scale, softcap,
               pointer<char>(pages), num_pages, std::move(windows)});
}

void check_layer(const AttentionPlan& plan, int layer) {
    if (layer < 0 || layer >= plan.layers()) throw std::out_of_range("there is no such layer");
}

int64_t submit(AttentionDriver& driver, const std::shared_ptr<AttentionPlan>& plan, int first_layer, int layers,
               uintptr_t kv, uintptr_t kv_stride, uintptr_t queries, uintptr_t outputs, uintptr_t stride,
               uintptr_t gates, uint32_t gate_value, uintptr_t done, uint32_t done_value, int event_fd) {
    std::vector<Job> jobs;
    for (int i = 0; i < layers; ++i) {
        check_layer(*plan, first_layer + i);
        const uintptr_t at = uintptr_t(i);
        Job job;
        job.plan = plan;
        job.layer = first_layer + i;
        job.kv = kv ? pointer<const void>(kv + at * kv_stride) : nullptr;
        job.queries = pointer<const void>(queries + at * stride);
        job.outputs = pointer<void>(outputs + at * stride);
        job.gate = gates ? pointer<const std::atomic<uint32_t>>(gates + at * 4) : nullptr;
        job.gate_value = gate_value;
        job.done = done ? pointer<std::atomic<uint32_t>>(done + at * 4) : nullptr;
        job.done_value = done_value;
        job.event_fd = event_fd;
        jobs.push_back(std::move(job));
    }
    return driver.submit(std::move(jobs));
}

// A job that runs is waited for.
void destroy(AttentionDriver* driver) {
    const nb::gil_scoped_release released;
    delete driver;
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "Native CPU kernels; see engine/kernels/_native.pyi.";
    module.def("instruction_sets", &instruction_sets);

    nb::class_<ThreadPool>(module, "ThreadPool")
        .def(nb::new_([](int threads, const std::vector<int>& cpus, int spin_microseconds) {
                 return std::make_shared<ThreadPool>(threads, cpus, spin_microseconds);
             }),
             "threads"_a, "cpus"_a, "spin_microseconds"_a)
        .def_prop_ro("threads", &ThreadPool::threads)
        .def(
            "read_bandwidth",
            [](ThreadPool& pool, const std::string& instruction_set, size_t bytes, int rounds) {
                return read_bandwidth(pool, kernels_named(instruction_set), bytes, rounds);
            },
            "instruction_set"_a, "bytes"_a, "rounds"_a, nb::call_guard<nb::gil_scoped_release>());

    nb::class_<AttentionContext>(module, "AttentionContext")
        .def(nb::new_(&make_context), "pool"_a, "instruction_set"_a, nb::kw_only(), "layers"_a, "heads"_a,
             "kv_heads"_a, "dim"_a, "page_size"_a, "kv_format"_a, "io_format"_a, "scale"_a, "softcap"_a,
             "windows"_a, "pages"_a, "num_pages"_a)
        .def_prop_ro("instruction_set", [](const AttentionContext& self) { return self.kernels.name; })
        .def_prop_ro("page_bytes", [](const AttentionContext& self) { return self.layout.page_bytes(); });

    nb::class_<AttentionPlan>(module, "AttentionPlan")
        .def(nb::new_([](const std::shared_ptr<AttentionContext>& context) {
                 return std::make_shared<AttentionPlan>(context);
             }),
             "context"_a)
        .def(
            "prepare",
            [](AttentionPlan& self, int64_t count, uintptr_t rows, uintptr_t starts, uintptr_t page_starts,
               uintptr_t page_ids) {
                self.prepare({count, pointer<const int64_t>(rows), pointer<const int64_t>(starts),
                              pointer<const int64_t>(page_starts), pointer<const int64_t>(page_ids)});
            },
            "sequences"_a, "rows"_a, "starts"_a, "page_starts"_a, "page_ids"_a,
            nb::call_guard<nb::gil_scoped_release>())
        .def(
            "append",
            [](AttentionPlan& self, int layer, uintptr_t kv) {
                check_layer(self, layer);
                self.append(layer, pointer<const void>(kv));
            },
            "layer"_a, "kv"_a, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "attend",
            [](AttentionPlan& self, int layer, uintptr_t queries, uintptr_t outputs) {
                check_layer(self, layer);
                self.attend(layer, pointer<const void>(queries), pointer<void>(outputs));
            },
            "layer"_a, "queries"_a, "outputs"_a, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "append_and_attend",
            [](AttentionPlan& self, int layer, uintptr_t kv, uintptr_t queries, uintptr_t outputs) {
                check_layer(self, layer);
                self.append(layer, pointer<const void>(kv));
                self.attend(layer, pointer<const void>(queries), pointer<void>(outputs));
            },
            "layer"_a, "kv"_a, "queries"_a, "outputs"_a, nb::call_guard<nb::gil_scoped_release>());

    nb::class_<AttentionDriver>(module, "AttentionDriver")
        .def(nb::new_([](int spin_microseconds) {
                 return std::shared_ptr<AttentionDriver>(new AttentionDriver(spin_microseconds), destroy);
             }),
             "spin_microseconds"_a)
        .def("submit", &submit, "plan"_a, nb::kw_only(), "first_layer"_a, "layers"_a, "kv"_a, "kv_stride"_a,
             "queries"_a, "outputs"_a, "stride"_a, "gates"_a, "gate_value"_a, "done"_a, "done_value"_a,
             "event_fd"_a, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "state", [](AttentionDriver& self, int64_t ticket) { return int(self.state(ticket)); }, "ticket"_a,
            nb::call_guard<nb::gil_scoped_release>())
        .def("wait", &AttentionDriver::wait, "ticket"_a, "timeout_microseconds"_a,
             nb::call_guard<nb::gil_scoped_release>())
        .def("cancel", &AttentionDriver::cancel, "ticket"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("notify", &AttentionDriver::notify, nb::call_guard<nb::gil_scoped_release>());

    bind_dense(module);
    bind_step(module);
    bind_sampling(module);
}
