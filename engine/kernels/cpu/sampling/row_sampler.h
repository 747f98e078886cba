// One row of logits to one token, and its log-probabilities.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "candidates.h"
#include "row_kernels.h"

namespace tandem {

// How a row is sampled, as Python packs it.
struct RowSpec {
    double temperature;  // 0: the highest
    double top_p, min_p; // 1 and 0: off
    int64_t top_k;       // 0: off
    uint64_t seed;
    int64_t choice, position;
    int64_t logprobs;    // wanted beside the token's own; -1: not even that
    int64_t additions;   // of this row; after those of the rows before it
    double repetition, presence, frequency;  // penalties; 1, 0 and 0: off
    int64_t prompt, output;                  // tokens of this row's history, likewise
};

// What changes logits, the rows one after another. Tokens that the vocabulary lacks are left out.
struct Changes {
    const int64_t* ids;
    const double* additions;  // -inf for a ban
    const int64_t* history;
};

struct RowResult {
    int64_t* token;         // -1: there is none to give
    double* logprob;
    int64_t* top_ids;       // most likely first, at least `logprobs` of them or the vocabulary
    double* top_logprobs;
};

// Memory of one thread, used again for each row.
class RowSampler {
public:
    explicit RowSampler(const RowKernels& kernels) : kernels_(kernels) {}

    // `changes` begins with the row's own.
    void sample(const float* row, size_t count, const RowSpec& spec, const Changes& changes, const RowResult& result);

private:
    template <class T>
    struct Row {
        const T* values;
        size_t count;
        const std::vector<T>& maxima;
        Scan<T> scan;
    };

    template <class T>
    Row<T> scanned(const T* row, size_t count, std::vector<T>& maxima) const;
    template <class T>
    int64_t choose(const Row<T>& row, const RowSpec& spec);
    template <class T>
    int64_t draw_from_all(const Row<T>& row, const RowSpec& spec);
    template <class T>
    void filter(const Row<T>& row, const RowSpec& spec);
    template <class T>
    T leading_bound(const Row<T>& row, size_t leading);
    template <class T>
    double total_weight(const Row<T>& row, double inverse);
    template <class T>
    void gather(const Row<T>& row, double bound, double shift, double temperature);
    const double* changed_row(const float* row, size_t count, const RowSpec& spec, const Changes& changes);
    template <class Penalise>
    void for_each_distinct(const int64_t* tokens, int64_t count, Penalise penalise);
    void log_probabilities(const Row<float>& row, const RowSpec& spec, const RowResult& result);

    const RowKernels& kernels_;
    Candidates candidates_;
    std::vector<float> maxima_;
    std::vector<double> changed_maxima_, changed_, sums_;
    std::vector<int64_t> occurrences_;  // by token; zero between rows
    std::vector<float> ordered_;
    std::vector<double> changed_ordered_;

    std::vector<float>& ordered(float) { return ordered_; }
    std::vector<double>& ordered(double) { return changed_ordered_; }
};

}  // namespace tandem
