// The native library without Python, against double precision: for sanitizers, and for processors that are
// emulated. Prints a line for each group of checks.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/eventfd.h>
#include <unistd.h>
#endif

#include "attention_context.h"
#include "attention_driver.h"
#include "attention_plan.h"
#include "host_memory.h"
#include "instruction_sets.h"
#include "native_dense_tests.h"
#include "thread_pool.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TANDEM_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TANDEM_SANITIZED
#endif
#endif

// Counts what is allocated: operator new ends here too.
#if defined(__GLIBC__) && !defined(TANDEM_SANITIZED)
#define TANDEM_COUNTS_ALLOCATIONS
static std::atomic<int> allocations{0};
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t bytes) {
    ++allocations;
    return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
    ++allocations;
    return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
    ++allocations;
    return __libc_realloc(memory, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
    ++allocations;
    return __libc_memalign(alignment, bytes);
}
}
#endif

namespace {

using namespace tandem;
using Bytes = std::vector<char>;
using Random = std::mt19937;

int checks = 0, failures = 0;

void expect(bool good, const std::string& what) {
    ++checks;
    if (good) return;
    ++failures;
    std::printf("FAILED: %s\n", what.c_str());
}

template <class Exception>
void expect_throw(const std::function<void()>& call, const std::string& what) {
    try {
        call();
    } catch (const Exception&) {
        return expect(true, what);
    }
    expect(false, what + " is not refused");
}

void report(const std::string& group) {
    std::printf("%-40s %7d checks\n", group.c_str(), checks);
    std::fflush(stdout);
    checks = 0;
}

// Cases in which every two values of two factors meet; values are given by their indices.
std::vector<std::vector<int>> pairwise(const std::vector<int>& sizes) {
    using Pair = std::array<int, 4>;
    const int count = int(sizes.size());
    std::set<Pair> missing;
    for (int a = 0; a < count; ++a)
        for (int b = a + 1; b < count; ++b)
            for (int i = 0; i < sizes[size_t(a)]; ++i)
                for (int j = 0; j < sizes[size_t(b)]; ++j) missing.insert({a, i, b, j});
    auto covered = [&](const std::vector<int>& values) {
        std::vector<Pair> pairs;
        for (int a = 0; a < count; ++a)
            for (int b = a + 1; b < count; ++b) {
                const Pair pair{a, values[size_t(a)], b, values[size_t(b)]};
                if (missing.count(pair)) pairs.push_back(pair);
            }
        return pairs;
    };
    Random random(1);
    std::vector<std::vector<int>> cases;
    while (!missing.empty()) {
        const Pair wanted = *missing.begin();
        std::vector<int> best;
        std::vector<Pair> most;
        for (int attempt = 0; attempt < 30; ++attempt) {
            std::vector<int> values;
            for (const int size : sizes) values.push_back(int(random() % unsigned(size)));
            values[size_t(wanted[0])] = wanted[1];
            values[size_t(wanted[2])] = wanted[3];
            std::vector<Pair> pairs = covered(values);
            if (pairs.size() > most.size()) best = values, most = std::move(pairs);
        }
        for (const Pair& pair : most) missing.erase(pair);
        cases.push_back(best);
    }
    return cases;
}

struct Sequence {
    int rows, start;
    int end() const { return start + rows; }
};

struct Case {
    std::vector<Sequence> sequences;
    int kv_heads = 2, group = 3, dim = 64, page_size = 16;
    Format kv = Format::float32, io = Format::float32;
    std::vector<int> windows = {0};
    float softcap = 0.0f, scale = 0.125f;
    unsigned seed = 0;

    int layers() const { return int(windows.size()); }
    int heads() const { return kv_heads * group; }
    int rows() const {
        int sum = 0;
        for (const Sequence& each : sequences) sum += each.rows;
        return sum;
    }
    std::string name() const {
        return "page " + std::to_string(page_size) + ", dim " + std::to_string(dim) + ", group " +
               std::to_string(group) + ", KV heads " + std::to_string(kv_heads) + ", kv " +
               std::to_string(int(kv)) + ", io " + std::to_string(int(io)) + ", window " +
               std::to_string(windows[0]) + ", softcap " + std::to_string(softcap) + ", seed " + std::to_string(seed);
    }
};

double element(const char* data, Format format, ptrdiff_t index) {
    switch (format) {
        case Format::float32: return reinterpret_cast<const float*>(data)[index];
        case Format::bfloat16: return to_float(reinterpret_cast<const bfloat16*>(data)[index]);
        case Format::float16: return to_float(reinterpret_cast<const float16*>(data)[index]);
        default: return reinterpret_cast<const int8_t*>(data)[index];
    }
}

Bytes random_numbers(Random& random, Format format, size_t count) {
    auto uniform = [&random] { return float(int32_t(uint32_t(random()))) * 0x1p-31f; };
    Bytes bytes(count * size_t(size_of(format)));
    for (size_t i = 0; i < count; ++i) {
        const float value = 1.2f * (uniform() + uniform());  // a variance of one
        switch (format) {
            case Format::bfloat16: from_float(value, reinterpret_cast<bfloat16*>(bytes.data()) + i); break;
            case Format::float16: from_float(value, reinterpret_cast<float16*>(bytes.data()) + i); break;
            default: reinterpret_cast<float*>(bytes.data())[i] = value; break;
        }
    }
    return bytes;
}

// Pages in shuffled order, filled through append().
class Storage {
public:
    Storage(Case wanted, const std::string& instruction_set, int threads = 1)
        : what(std::move(wanted)), set_(instruction_set) {
        Random random(what.seed);
        int64_t total = 0;
        for (const Sequence& each : what.sequences) {
            starts_.push_back(total);
            total += (each.end() + what.page_size - 1) / what.page_size;
        }
        num_pages_ = total + 3;
        page_ids_.resize(size_t(num_pages_));
        std::iota(page_ids_.begin(), page_ids_.end(), 0);
        std::shuffle(page_ids_.begin(), page_ids_.end(), random);
        page_ids_.resize(size_t(total));
        starts_.push_back(total);
        // What lies beyond a sequence's end must not matter. These bits are NaN in all float formats.
        pages.assign(size_t(layout().page_bytes() * num_pages_), char(0xff));
        size_t tokens = 0;
        for (const Sequence& each : what.sequences) tokens += size_t(each.end());
        for (int layer = 0; layer < what.layers(); ++layer) {
            kv.push_back(random_numbers(random, what.io, tokens * 2 * size_t(what.kv_heads * what.dim)));
            queries.push_back(random_numbers(random, what.io, size_t(what.rows() * what.heads() * what.dim)));
        }
        use(std::make_shared<ThreadPool>(threads, std::vector<int>(), 20));
        fill();
    }

    Layout layout() {
        return {what.layers(), what.heads(), what.kv_heads, what.dim, what.page_size, what.kv, what.io,
                what.scale, what.softcap, pages.data(), num_pages_, what.windows};
    }

    void use(const std::shared_ptr<ThreadPool>& pool) {
        context_ = std::make_shared<AttentionContext>(pool, set_, layout());
        plan = std::make_shared<AttentionPlan>(context_);
    }

    // Some of the sequences, or others on their pages.
    void prepare(const std::vector<Sequence>& sequences, const std::vector<int>& tables) {
        std::vector<int64_t> rows, first, page_starts{0}, page_ids;
        for (size_t i = 0; i < sequences.size(); ++i) {
            rows.push_back(sequences[i].rows);
            first.push_back(sequences[i].start);
            const auto table = size_t(tables[i]);
            for (int64_t page = starts_[table]; page < starts_[table + 1]; ++page)
                page_ids.push_back(page_ids_[size_t(page)]);
            page_starts.push_back(int64_t(page_ids.size()));
        }
        plan->prepare({int64_t(rows.size()), rows.data(), first.data(), page_starts.data(), page_ids.data()});
    }

    void prepare() {
        std::vector<int> tables(what.sequences.size());
        std::iota(tables.begin(), tables.end(), 0);
        prepare(what.sequences, tables);
    }

    void fill() {
        std::vector<Sequence> whole;
        std::vector<int> tables;
        for (const Sequence& each : what.sequences) {
            tables.push_back(int(whole.size()));
            whole.push_back({each.end(), 0});
        }
        prepare(whole, tables);
        for (int layer = 0; layer < what.layers(); ++layer) plan->append(layer, kv[size_t(layer)].data());
        prepare();
    }

    size_t row_bytes() const { return size_t(what.heads() * what.dim * size_of(what.io)); }

    // Of `count` rows whose queries begin at the case's row `row`.
    Bytes attend(int layer, int row, int count) {
        Bytes output(size_t(count) * row_bytes(), char(0xff));
        plan->attend(layer, queries[size_t(layer)].data() + size_t(row) * row_bytes(), output.data());
        return output;
    }
    Bytes attend(int layer) { return attend(layer, 0, what.rows()); }

    struct Expected {
        std::vector<double> outputs, errors;  // [rows][heads][dim]; how far they may be off
    };
    Expected expected(int layer) {
        Expected result;
        const size_t elements = size_t(what.rows() * what.heads() * what.dim);
        result.outputs.resize(elements);
        result.errors.resize(elements);
        int row = 0;
        for (size_t i = 0; i < what.sequences.size(); row += what.sequences[i++].rows)
            for (int head = 0; head < what.kv_heads; ++head) expect_head(layer, int(i), row, head, result);
        return result;
    }

    const Case what;
    Bytes pages;
    std::vector<Bytes> kv, queries;  // of each layer
    std::shared_ptr<AttentionPlan> plan;

private:
    // One side of one KV head as the pages hold it: [tokens][dim].
    std::vector<double> stored(int layer, int sequence, int side, int head) {
        const Layout all = layout();
        std::vector<double> out;
        for (int t = 0; t < what.sequences[size_t(sequence)].end(); ++t) {
            const int64_t page = page_ids_[size_t(starts_[size_t(sequence)] + t / what.page_size)];
            const char* block = all.block(page, layer, side, head);
            double scale = 1.0;
            if (what.kv == Format::int8)
                scale = element(block + what.page_size * what.dim, Format::float32, t % what.page_size);
            for (int d = 0; d < what.dim; ++d)
                out.push_back(scale * element(block, what.kv, ptrdiff_t(t % what.page_size) * what.dim + d));
        }
        return out;
    }

    void expect_head(int layer, int sequence, int first_row, int kv_head, Expected& result) {
        const size_t dim = size_t(what.dim);
        const std::vector<double> keys = stored(layer, sequence, 0, kv_head);
        const std::vector<double> values = stored(layer, sequence, 1, kv_head);
        double largest_value = 0.0;
        for (const double value : values) largest_value = std::max(largest_value, std::abs(value));
        const double rounding = what.io == Format::float32 ? 0x1p-24 : what.io == Format::float16 ? 0x1p-11 : 0x1p-8;
        const Sequence& rows = what.sequences[size_t(sequence)];
        std::vector<double> query(dim), weights(size_t(rows.end()));
        for (int lane = 0; lane < rows.rows * what.group; ++lane) {
            const int row = lane / what.group, position = rows.start + row;
            const int head = kv_head * what.group + lane % what.group;
            const size_t at = size_t((first_row + row) * what.heads() + head) * dim;
            const char* const from = queries[size_t(layer)].data();
            for (size_t d = 0; d < dim; ++d) query[d] = element(from, what.io, ptrdiff_t(at + d));
            const int window = what.windows[size_t(layer)];
            const int first = window > 0 && window <= position ? position + 1 - window : 0;
            double highest = -INFINITY, largest = 8.0 + double(what.softcap), total = 0.0;
            for (int t = first; t <= position; ++t) {
                double score = 0.0;
                for (size_t d = 0; d < dim; ++d) score += query[d] * keys[size_t(t) * dim + d];
                score *= double(what.scale);
                largest = std::max(largest, 8.0 + std::abs(score));
                if (what.softcap > 0.0f) score = double(what.softcap) * std::tanh(score / double(what.softcap));
                weights[size_t(t)] = score;
                highest = std::max(highest, score);
            }
            double* const out = result.outputs.data() + at;
            for (int t = first; t <= position; ++t) {
                const double weight = std::exp(weights[size_t(t)] - highest);
                total += weight;
                for (size_t d = 0; d < dim; ++d) out[d] += weight * values[size_t(t) * dim + d];
            }
            for (size_t d = 0; d < dim; ++d) {
                out[d] /= total;
                result.errors[at + d] = rounding * std::abs(out[d]) + 0x1p-22 * largest * largest_value;
            }
        }
    }

    const std::string set_;
    std::vector<int64_t> starts_, page_ids_;
    int64_t num_pages_ = 0;
    std::shared_ptr<AttentionContext> context_;
};

bool close(const Bytes& output, Format io, const Storage::Expected& expected) {
    for (size_t i = 0; i < expected.outputs.size(); ++i) {
        const double value = element(output.data(), io, ptrdiff_t(i));
        if (!(std::abs(value - expected.outputs[i]) <= expected.errors[i])) return false;
    }
    return true;
}

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const Kernels* kernels : available_kernels()) names.emplace_back(kernels->name);
    return names;
}

std::vector<Case> sweep() {
    const std::vector<int> page_sizes{1, 7, 8, 16, 32}, dims{16, 32, 64, 80, 96, 128, 256},
        groups{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16}, kv_heads{1, 2, 3}, windows{0, 5, 40, 100, 300, 5000};
    enum Batch { decode, prefill, continued, mixed, batches };
    std::vector<Case> cases;
    const std::vector<int> sizes{5, 7, 11, 3, 6, 4, 3, 2, 2, batches};
    for (const std::vector<int>& values : pairwise(sizes)) {
        auto value = values.begin();
        Case each;
        each.page_size = page_sizes[size_t(*value++)];
        each.dim = dims[size_t(*value++)];
        each.group = groups[size_t(*value++)];
        each.kv_heads = kv_heads[size_t(*value++)];
        each.windows = {windows[size_t(*value++)]};
        each.kv = Format(*value++);
        each.io = Format(*value++);
        each.softcap = *value++ ? 20.0f : 0.0f;
        each.scale = *value++ ? 0.3f : 1.0f / std::sqrt(float(each.dim));
        each.seed = unsigned(cases.size());
        Random random(each.seed);
        auto below = [&random](int limit) { return int(random() % unsigned(limit)); };
        if (*value == decode) each.sequences = {{1, below(80)}, {1, below(700)}};
        if (*value == prefill) each.sequences = {{2 + below(30), 0}};
        if (*value == continued) each.sequences = {{2 + below(8), 1 + below(400)}};
        if (*value == mixed) each.sequences = {{1, below(700)}, {2 + below(8), 1 + below(200)}};
        cases.push_back(each);
    }
    return cases;
}

void check_attention(int every) {
    const std::vector<Case> cases = sweep();
    const std::vector<std::string> names = instruction_sets();
    std::vector<std::string> groups;
    for (size_t i = 0; i < cases.size(); i += size_t(every)) {
        Storage reference(cases[i], names[0]);
        const Storage::Expected expected = reference.expected(0);
        for (const std::string& name : names) {
            Storage storage(cases[i], name, 1 + int(i % 3));
            expect(storage.pages == reference.pages, name + " stores something else: " + cases[i].name());
            expect(close(storage.attend(0), cases[i].io, expected), name + " attends: " + cases[i].name());
        }
    }
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    report("attention: " + all);
}

Case large(Format kv, int kv_heads, int group, int dim, const std::vector<Sequence>& sequences) {
    Case result;
    result.sequences = sequences;
    result.kv = kv;
    result.kv_heads = kv_heads;
    result.group = group;
    result.dim = dim;
    result.windows = {0, 100};
    return result;
}

std::vector<Case> large_cases() {
    return {large(Format::float32, 8, 2, 64, {{1, 900}, {1, 300}}),
            large(Format::int8, 3, 4, 96, {{1, 700}, {1, 20}, {30, 150}}),
            large(Format::bfloat16, 2, 5, 64, {{60, 0}, {20, 300}})};
}

void check_threads() {
    for (const std::string& name : instruction_sets()) {
        for (const Case& each : large_cases()) {
            Storage storage(each, name);
            const Bytes pages = storage.pages;
            const std::vector<Bytes> alone{storage.attend(0), storage.attend(1)};
            for (const int threads : {2, 3, 8}) {
                storage.use(std::make_shared<ThreadPool>(threads, std::vector<int>(), 20));
                std::fill(storage.pages.begin(), storage.pages.end(), char(0xff));
                storage.fill();
                const std::string what = name + ", " + std::to_string(threads) + " threads: " + each.name();
                expect(storage.pages == pages, what + ", pages");
                for (int layer = 0; layer < 4; ++layer)
                    expect(storage.attend(layer % 2) == alone[size_t(layer % 2)], what);
            }
        }
    }
    report("the same for all numbers of threads");
}

void check_batches() {
    for (const std::string& name : instruction_sets()) {
        for (const Case& each : large_cases()) {
            Storage storage(each, name, 3);
            const Bytes together = storage.attend(0);
            const size_t row_bytes = storage.row_bytes();
            int row = 0;
            for (int i = 0; i < int(each.sequences.size()); ++i) {
                const Sequence& sequence = each.sequences[size_t(i)];
                auto same = [&](int first, int count) {
                    const Bytes part = storage.attend(0, row + first, count);
                    const char* const whole = together.data() + size_t(row + first) * row_bytes;
                    return std::memcmp(part.data(), whole, part.size()) == 0;
                };
                storage.prepare({sequence}, {i});
                expect(same(0, sequence.rows), name + ", alone: " + each.name());
                for (int first = 0; sequence.rows > 9 && first < sequence.rows; first += 9) {
                    int count = std::min(9, sequence.rows - first);
                    if (count == 1) --first, ++count;  // a single row is decoded, and rounded in another order
                    storage.prepare({{count, sequence.start + first}}, {i});
                    expect(same(first, count), name + ", in chunks: " + each.name());
                }
                row += sequence.rows;
            }
        }
    }
    report("the same alone and in chunks");
}

void check_formats() {
    for (int bits = 0; bits < 0x10000; ++bits) {
        const float16 half{uint16_t(bits)};
        const int exponent = bits >> 10 & 31, fraction = bits & 1023;
        const double sign = bits & 0x8000 ? -1.0 : 1.0;
        const float value = to_float(half);
        if (exponent == 31 && fraction) {
            expect(std::isnan(value), "half that is no number");
            continue;
        }
        const double wanted = exponent == 31 ? INFINITY
                              : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                                             : std::ldexp(fraction, -24);
        float16 back;
        from_float(value, &back);
        expect(double(value) == sign * wanted && back.bits == half.bits, "half " + std::to_string(bits));
    }
    // Of the format's numbers none is nearer, and of two as near it is the even one.
    Random random(2);
    auto nearest = [](auto found, double value) {
        using Number = decltype(found);
        const double off = std::abs(double(to_float(found)) - value);
        for (const int step : {-1, 1}) {
            const Number other{uint16_t(found.bits + step)};
            const double other_off = std::abs(double(to_float(other)) - value);
            if (other_off < off || (other_off == off && found.bits % 2 != 0)) return false;
        }
        return true;
    };
    for (int i = 0; i < 20000; ++i) {
        const uint32_t short_tail = random() & (i % 2 ? 0xffffffffu : 0xfffff000u);  // many ties
        const uint32_t bits = (short_tail & 0x807fffffu) | (102 + random() % 40) << 23;
        float value;
        std::memcpy(&value, &bits, 4);
        float16 half;
        bfloat16 brain;
        from_float(value, &half);
        from_float(value, &brain);
        expect(half.bits % 0x8000 == 0 || nearest(half, double(value)), "rounds to half " + std::to_string(bits));
        expect(nearest(brain, double(value)), "rounds to bfloat16 " + std::to_string(bits));
    }
    report("number formats");
}

void check_refusals() {
    Case each;
    each.sequences = {{4, 60}};
    Storage storage(each, "scalar");
    const Bytes before = storage.attend(0);
    for (const Sequence& bad : {Sequence{5, 60}, Sequence{0, 3}, Sequence{-1, 3}, Sequence{3, -1}})
        expect_throw<std::invalid_argument>([&] { storage.prepare({bad}, {0}); }, "a sequence that does not fit");
    const int64_t rows = 1, start = 0, page_starts[] = {0, 1}, low = -1, high = 7;
    for (const int64_t* page : {&low, &high})
        expect_throw<std::invalid_argument>([&] { storage.plan->prepare({1, &rows, &start, page_starts, page}); },
                                            "an unknown page");
    expect(storage.attend(0) == before, "a refused batch changes nothing");
    auto refuse = [&](const std::function<void(Layout&)>& change) {
        Layout layout = storage.layout();
        change(layout);
        expect_throw<std::invalid_argument>(
            [&] { AttentionContext(std::make_shared<ThreadPool>(1, std::vector<int>(), 0), "scalar", layout); },
            "a layout");
    };
    refuse([](Layout& layout) { layout.dim = 24; });
    refuse([](Layout& layout) { layout.dim = 272; });
    refuse([](Layout& layout) { layout.heads = 130; });
    refuse([](Layout& layout) { layout.heads = 5; });
    refuse([](Layout& layout) { layout.io = Format::int8; });
    refuse([](Layout& layout) { layout.windows = {0, 0}; });
    refuse([](Layout& layout) { layout.windows = {-1}; });
    expect_throw<std::invalid_argument>([] { kernels_named("sse9"); }, "an unknown instruction set");
    expect_throw<std::invalid_argument>([] { ThreadPool(0, {}, 0); }, "a pool without threads");
    expect_throw<std::invalid_argument>([] { ThreadPool(2, {0}, 0); }, "a pool with too few cpus");
    report("refusals");
}

void check_allocations() {
#if defined(TANDEM_COUNTS_ALLOCATIONS)
    allocations = 0;
    const std::unique_ptr<std::vector<int>> two(new std::vector<int>(10));
    int made = allocations;
    expect(made >= 2, "allocations are counted");
    for (const std::string& name : instruction_sets()) {
        for (const Case& each : large_cases()) {
            for (const int threads : {1, 3}) {
                Storage storage(each, name, threads);
                std::vector<Sequence> whole;
                for (const Sequence& sequence : each.sequences) whole.push_back({sequence.end(), 0});
                std::vector<int> tables(whole.size());
                std::iota(tables.begin(), tables.end(), 0);
                Bytes output(size_t(each.rows()) * storage.row_bytes());
                storage.prepare(whole, tables);
                allocations = 0;
                storage.plan->append(0, storage.kv[0].data());
                storage.plan->append(1, storage.kv[1].data());
                made = allocations;
                expect(made == 0, name + ": append allocates");
                storage.prepare();
                allocations = 0;
                for (int layer = 0; layer < 4; ++layer)
                    storage.plan->attend(layer % 2, storage.queries[size_t(layer % 2)].data(), output.data());
                made = allocations;
                expect(made == 0, name + ": attend allocates");
            }
        }
    }
    report("no allocations");
#endif
}

void check_bandwidth() {
    ThreadPool pool(2, {}, 20);
    for (const Kernels* kernels : available_kernels())
        expect(read_bandwidth(pool, *kernels, size_t{4} << 20, 2) > 0.0, "bandwidth");
    report("bandwidth");
}

// A storage's layers as jobs, and the memory they use.
struct Jobs {
    Storage& storage;
    std::vector<Bytes> queries, outputs, expected;
    std::vector<std::atomic<uint32_t>> gates, done;

    explicit Jobs(Storage& of)
        : storage(of), queries(of.queries), gates(size_t(of.what.layers())), done(size_t(of.what.layers())) {
        for (const Bytes& each : queries) outputs.emplace_back(each.size(), char(0xff));
        for (int layer = 0; layer < layers(); ++layer) expected.push_back(of.attend(layer));
    }
    int layers() const { return int(gates.size()); }
    std::vector<Job> make(bool gated, int event_fd = -1) {
        std::vector<Job> jobs;
        for (size_t i = 0; i < gates.size(); ++i)
            jobs.push_back({storage.plan, int(i), nullptr, queries[i].data(), outputs[i].data(),
                            gated ? &gates[i] : nullptr, 1, &done[i], 2, event_fd});
        return jobs;
    }
    bool computed(int layer) const {
        return done[size_t(layer)] == 2 && outputs[size_t(layer)] == expected[size_t(layer)];
    }
    bool untouched(int layer) const {
        const Bytes& output = outputs[size_t(layer)];
        return done[size_t(layer)] == 0 && output == Bytes(output.size(), char(0xff));
    }
};

Case driven(const std::vector<Sequence>& sequences) {
    Case result;
    result.sequences = sequences;
    result.windows = {0, 7, 100, 0, 30, 0, 1, 16};
    return result;
}

// As a device does it: queries are written right before their gate opens, and outputs are read as soon as the done
// word says so.
void check_gates(int threads, int spin) {
    const std::string name = instruction_sets()[0];
    Storage one(driven({{1, 600}, {20, 30}}), name, threads), two(driven({{40, 0}}), name, threads);
    Jobs first(one), second(two);
    for (Bytes& each : first.queries) std::fill(each.begin(), each.end(), char(0xff));
    AttentionDriver driver(spin);
    const AttentionDriver::Ticket ticket = driver.submit(first.make(true)), other = driver.submit(second.make(true));
    std::thread opener([&] {
        std::vector<int> order(size_t(first.layers()));
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), Random(3));
        for (const int layer : order) {
            const auto i = size_t(layer);
            std::copy(one.queries[i].begin(), one.queries[i].end(), first.queries[i].begin());
            first.gates[i].store(1, std::memory_order_release);
            second.gates[i].store(1, std::memory_order_release);
            if (layer % 3 == 0) driver.notify();
        }
    });
    for (int layer = 0; layer < first.layers(); ++layer) {
        if (layer % 2) expect(driver.wait(ticket + layer, -1), "waits");
        while (first.done[size_t(layer)].load(std::memory_order_acquire) != 2) std::this_thread::yield();
        expect(first.computed(layer), "a job computes what a plain call does");
        expect(driver.wait(other + layer, -1) && second.computed(layer), "of another plan too");
        expect(driver.state(other + layer) == JobState::done, "state");
    }
    opener.join();
}

void check_cancelling() {
    Storage storage(driven({{30, 40}}), instruction_sets()[0], 2);
    Jobs jobs(storage), abandoned(storage);
    {
        AttentionDriver driver(20);
        const AttentionDriver::Ticket ticket = driver.submit(jobs.make(true));
        expect(!driver.wait(ticket, 500), "a closed gate");
        expect(driver.cancel(ticket + 1) && driver.cancel(ticket + 1) && driver.wait(ticket + 1, 0), "cancels");
        for (std::atomic<uint32_t>& gate : jobs.gates) gate = 1;
        driver.notify();
        for (int layer = 0; layer < jobs.layers(); ++layer) {
            driver.wait(ticket + layer, -1);
            const bool cancelled = driver.state(ticket + layer) == JobState::cancelled;
            expect(cancelled == (layer == 1) && driver.cancel(ticket + layer) == cancelled, "what was cancelled");
            expect(layer == 1 ? jobs.untouched(layer) : jobs.computed(layer), "and what was not");
        }
        expect_throw<std::out_of_range>([&] { driver.state(ticket + jobs.layers()); }, "a ticket of no job");
        driver.submit(abandoned.make(true));
    }
    for (int layer = 0; layer < jobs.layers(); ++layer) expect(abandoned.untouched(layer), "never begun");
}

// Many threads submit, cancel, ask and wait at once.
void check_contention() {
    const auto pool = std::make_shared<ThreadPool>(3, std::vector<int>(), 0);
    std::vector<std::unique_ptr<Storage>> storages;
    std::vector<std::vector<bool>> good(3);
    std::vector<std::thread> callers;
    AttentionDriver driver(0);
    for (int i = 0; i < 3; ++i) {
        storages.push_back(std::make_unique<Storage>(driven({{1, 300 * i}, {4, 10}}), "auto"));
        storages.back()->use(pool);
        storages.back()->prepare();
    }
    for (size_t i = 0; i < 3; ++i) {
        callers.emplace_back([&, i] {
            for (int round = 0; round < 20; ++round) {
                Jobs jobs(*storages[i]);
                const AttentionDriver::Ticket ticket = driver.submit(jobs.make(true));
                for (int layer = 0; layer < jobs.layers(); ++layer) jobs.gates[size_t(layer)] = 1;
                const bool cancelled = driver.cancel(ticket + round % jobs.layers());
                for (int layer = jobs.layers(); layer-- > 0;) {
                    driver.wait(ticket + layer, -1);
                    const bool left_out = cancelled && layer == round % jobs.layers();
                    const JobState wanted = left_out ? JobState::cancelled : JobState::done;
                    good[i].push_back(driver.state(ticket + layer) == wanted);
                }
                for (int layer = 0; layer < jobs.layers(); ++layer)
                    good[i].push_back(jobs.done[size_t(layer)] == 0 ? jobs.untouched(layer) : jobs.computed(layer));
            }
        });
    }
    for (std::thread& each : callers) each.join();
    for (const std::vector<bool>& each : good)
        for (const bool one : each) expect(one, "among many callers");
}

void check_capacity() {
    Case each;
    each.sequences = {{1, 0}};
    each.windows.assign(64, 0);
    each.page_size = 1;
    Storage storage(each, "scalar");
    std::vector<std::unique_ptr<Jobs>> waiting;
    Jobs more(storage);
    AttentionDriver driver(20);
    AttentionDriver::Ticket last = 0;
    for (int i = 0; i < AttentionDriver::kCapacity / 64; ++i) {
        waiting.push_back(std::make_unique<Jobs>(storage));
        last = driver.submit(waiting.back()->make(true));
    }
    expect_throw<std::length_error>([&] { driver.submit(more.make(false)); }, "more jobs than can wait");
    expect_throw<std::out_of_range>([&] { driver.state(last + 64); }, "the refused jobs' ticket");
    for (const auto& jobs : waiting)
        for (std::atomic<uint32_t>& gate : jobs->gates) gate.store(1, std::memory_order_release);
    driver.notify();
    driver.wait(last + 63, -1);
    expect(waiting.back()->done[63] == 2, "all have run");
    const AttentionDriver::Ticket ticket = driver.submit(more.make(false));
    expect(ticket == last + 64 && driver.wait(ticket + 63, -1), "room again");
    expect(driver.state(0) == JobState::done, "a job long past");
}

void check_events() {
#if defined(__linux__)
    Storage storage(driven({{1, 100}}), "auto");
    Jobs jobs(storage);
    const int event_fd = ::eventfd(0, 0);
    AttentionDriver driver(20);
    driver.submit(jobs.make(false, event_fd));
    uint64_t raised = 0, all = 0;
    while (all < uint64_t(jobs.layers()) && ::read(event_fd, &raised, sizeof raised) == sizeof raised) all += raised;
    expect(all == uint64_t(jobs.layers()), "events");
    for (int layer = 0; layer < jobs.layers(); ++layer) expect(jobs.computed(layer), "after the events");
    ::close(event_fd);
#endif
}

void check_driver() {
    for (const int threads : {1, 3})
        for (const int spin : {0, 200}) check_gates(threads, spin);
    check_cancelling();
    check_contention();
    check_capacity();
    check_events();
    report("driver");
}

}  // namespace

// An argument n takes only each n-th case of the sweep.
int main(int count, char** arguments) {
    check_formats();
    check_attention(count > 1 ? std::max(std::atoi(arguments[1]), 1) : 1);
    check_dense(expect);
    report("products with weights");
    check_threads();
    check_batches();
    check_refusals();
    check_allocations();
    check_bandwidth();
    check_driver();
    std::printf(failures ? "%d FAILED\n" : "all passed\n", failures);
    return failures ? 1 : 0;
}
