#include "row_sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "random_numbers.h"

namespace tandem {

namespace {

constexpr double kFloor = -9999.0;  // JSON has no infinity; OpenAI's value for "can't happen"

// So tiny a temperature leaves none but the highest; its inverse must stay finite, as 0 times it must be 0.
double inverse_of(double temperature) { return std::min(1.0 / temperature, 1e308); }

// A bound in the row's own type and a little lower: whoever is within rounding errors of it is a candidate, and what
// is kept is decided in float64 then.
template <class T>
T loosened(double bound, double highest) {
    const double lower = bound - 1e-14 * (std::abs(bound) + std::abs(highest));
    return std::nextafter(T(lower), -std::numeric_limits<T>::infinity());
}

// First index with a sum above the target; the last one of weight if rounding put the target at the end.
size_t locate(const double* cumulated, size_t count, double target) {
    const double* end = cumulated + count;
    const double* last = std::lower_bound(cumulated, end, end[-1]);
    return size_t(std::min(std::upper_bound(cumulated, end, target), last) - cumulated);
}

void cumulate(double* values, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; ++i) values[i] = sum += values[i];
}

struct Block {
    size_t number;
    double rest;  // of the target, inside the block
};

Block locate_block(double* sums, size_t count, double uniform) {
    cumulate(sums, count);
    const double target = uniform * sums[count - 1];
    const size_t number = locate(sums, count, target);
    return {number, target - (number ? sums[number - 1] : 0.0)};
}

}  // namespace

void RowSampler::sample(const float* row, size_t count, const RowSpec& spec, const Changes& changes,
                        const RowResult& result) {
    const Row<float> raw = scanned(row, count, maxima_);
    *result.token = -1;
    if (raw.scan.has_nan || !std::isfinite(raw.scan.highest)) return;
    *result.token = spec.additions > 0 || spec.prompt + spec.output > 0
                        ? choose(scanned(changed_row(row, count, spec, changes), count, changed_maxima_), spec)
                        : choose(raw, spec);
    if (spec.logprobs >= 0 && *result.token >= 0) log_probabilities(raw, spec, result);
}

template <class T>
RowSampler::Row<T> RowSampler::scanned(const T* row, size_t count, std::vector<T>& maxima) const {
    maxima.resize(maxima_room(count));
    return {row, count, maxima, functions<T>(kernels_).scan(row, count, maxima.data())};
}

const double* RowSampler::changed_row(const float* row, size_t count, const RowSpec& spec, const Changes& changes) {
    changed_.resize(count);
    occurrences_.resize(count);
    std::copy(row, row + count, changed_.begin());
    for (int64_t i = 0; i < spec.additions; ++i) {
        if (size_t(changes.ids[i]) < count) changed_[size_t(changes.ids[i])] += changes.additions[i];
    }
    if (spec.repetition != 1.0) {
        for_each_distinct(changes.history, spec.prompt + spec.output, [&](double& logit, int64_t) {
            logit = logit > 0.0 ? logit / spec.repetition : logit * spec.repetition;
        });
    }
    if (spec.presence != 0.0 || spec.frequency != 0.0) {
        for_each_distinct(changes.history + spec.prompt, spec.output, [&](double& logit, int64_t times) {
            logit -= spec.presence + spec.frequency * double(times);
        });
    }
    return changed_.data();
}

template <class Penalise>
void RowSampler::for_each_distinct(const int64_t* tokens, int64_t count, Penalise penalise) {
    auto known = [this](int64_t token) { return size_t(token) < changed_.size(); };
    for (int64_t i = 0; i < count; ++i) {
        if (known(tokens[i])) ++occurrences_[size_t(tokens[i])];
    }
    for (int64_t i = 0; i < count; ++i) {
        if (!known(tokens[i])) continue;
        int64_t& times = occurrences_[size_t(tokens[i])];
        if (times > 0) penalise(changed_[size_t(tokens[i])], times);
        times = 0;
    }
}

template <class T>
int64_t RowSampler::choose(const Row<T>& row, const RowSpec& spec) {
    if (row.scan.has_nan || !std::isfinite(row.scan.highest)) return -1;
    if (spec.temperature == 0.0) return int64_t(row.scan.best);
    const bool top_k = spec.top_k > 0 && size_t(spec.top_k) < row.count;
    if (!top_k && spec.top_p >= 1.0 && spec.min_p <= 0.0) return draw_from_all(row, spec);
    filter(row, spec);
    candidates_.weigh(kernels_);
    // As in engine/sampling/drawing.py: block sums first, then inside the block that is hit.
    const double* weights = candidates_.weights();
    const size_t count = candidates_.size();
    sums_.resize(std::max(block_count(count), kSumBlock));
    for (size_t start = 0, block = 0; start < count; start += kSumBlock, ++block) {
        sums_[block] = 0.0;
        for (size_t i = start; i < std::min(start + kSumBlock, count); ++i) sums_[block] += weights[i];
    }
    const double random = uniform(spec.seed, uint64_t(spec.choice), uint64_t(spec.position));
    const Block block = locate_block(sums_.data(), block_count(count), random);
    const size_t start = block.number * kSumBlock, inside = std::min(kSumBlock, count - start);
    std::copy_n(weights + start, inside, sums_.begin());
    cumulate(sums_.data(), inside);
    return candidates_.ids()[start + locate(sums_.data(), inside, block.rest)];
}

template <class T>
int64_t RowSampler::draw_from_all(const Row<T>& row, const RowSpec& spec) {
    const double inverse = inverse_of(spec.temperature), highest = double(row.scan.highest);
    sums_.resize(block_count(row.count));
    functions<T>(kernels_).block_sums(row.values, row.count, highest, inverse, sums_.data());
    const double random = uniform(spec.seed, uint64_t(spec.choice), uint64_t(spec.position));
    const Block block = locate_block(sums_.data(), sums_.size(), random);
    const size_t start = block.number * kSumBlock, inside = std::min(kSumBlock, row.count - start);
    double weights[kSumBlock];
    functions<T>(kernels_).block_weights(row.values + start, inside, highest, inverse, weights);
    cumulate(weights, inside);
    return int64_t(start + locate(weights, inside, block.rest));
}

// top_k, then top_p, then min_p, each over what the one before left. See engine/sampling/ranking.py.
template <class T>
void RowSampler::filter(const Row<T>& row, const RowSpec& spec) {
    const double highest = double(row.scan.highest);
    const bool top_k = spec.top_k > 0 && size_t(spec.top_k) < row.count;
    double mass = 0.0;
    if (top_k) {
        gather(row, double(leading_bound(row, size_t(spec.top_k))), highest, spec.temperature);
        candidates_.keep_leading(size_t(spec.top_k));
    } else if (spec.top_p < 1.0) {
        mass = total_weight(row, inverse_of(spec.temperature));
        // Tokens below such a share of the mass cannot together be more than 1 - top_p of it.
        const double bound = std::log((1.0 - spec.top_p) * mass / double(row.count));
        gather(row, highest + spec.temperature * bound, highest, spec.temperature);
    } else {
        gather(row, highest + spec.temperature * std::log(spec.min_p), highest, spec.temperature);
    }
    if (spec.top_p < 1.0) {
        candidates_.weigh(kernels_);
        if (top_k) {
            for (size_t i = 0; i < candidates_.size(); ++i) mass += candidates_.weights()[i];
        }
        candidates_.keep_nucleus(spec.top_p * mass);
    }
    if (spec.min_p > 0.0) candidates_.keep_from(std::log(spec.min_p));
}

// At least `leading` elements are not below it: each of so many groups has one.
template <class T>
T RowSampler::leading_bound(const Row<T>& row, size_t leading) {
    if (leading > row.scan.groups) return -std::numeric_limits<T>::infinity();
    std::vector<T>& maxima = ordered(T());
    maxima.assign(row.maxima.begin(), row.maxima.begin() + ptrdiff_t(row.scan.groups));
    const auto wanted = maxima.begin() + ptrdiff_t(leading) - 1;
    std::nth_element(maxima.begin(), wanted, maxima.end(), std::greater<T>());
    return *wanted;
}

template <class T>
double RowSampler::total_weight(const Row<T>& row, double inverse) {
    sums_.resize(block_count(row.count));
    functions<T>(kernels_).block_sums(row.values, row.count, double(row.scan.highest), inverse, sums_.data());
    double sum = 0.0;
    for (const double one : sums_) sum += one;
    return sum;
}

template <class T>
void RowSampler::gather(const Row<T>& row, double bound, double shift, double temperature) {
    const double highest = double(row.scan.highest);
    candidates_.gather(row.values, row.count, row.maxima.data(), functions<T>(kernels_).chunk_groups,
                       loosened<T>(bound, highest), shift, temperature);
}

void RowSampler::log_probabilities(const Row<float>& row, const RowSpec& spec, const RowResult& result) {
    const double normaliser = double(row.scan.highest) + std::log(total_weight(row, 1.0));
    auto logprob = [&](int64_t id) { return std::max(double(row.values[id]) - normaliser, kFloor); };
    *result.logprob = logprob(*result.token);
    const size_t top = std::min(size_t(spec.logprobs), row.count);
    if (top == 0) return;
    gather(row, double(leading_bound(row, top)), 0.0, 1.0);  // as they are: shifting could make ties
    candidates_.keep_leading(top);
    std::copy_n(candidates_.ids(), top, result.top_ids);
    std::stable_sort(result.top_ids, result.top_ids + top,
                     [&row](int64_t a, int64_t b) { return row.values[a] > row.values[b]; });
    std::transform(result.top_ids, result.top_ids + top, result.top_logprobs, logprob);
}

}  // namespace tandem
