#include "candidates.h"

#include <algorithm>
#include <functional>

namespace tandem {

namespace {

constexpr ptrdiff_t kSortedAtOnce = 24;
constexpr size_t kBuckets = 512;
constexpr double kBucketsPerUnit = 8.0;

// Which eighth below the highest; what is far below shares one.
size_t bucket_of(double scaled) { return size_t(std::min(-scaled * kBucketsPerUnit, double(kBuckets - 1))); }

template <class V>
void make_room(V& vector, size_t count) {
    if (vector.size() < count) vector.resize(count);
}

}  // namespace

template <class T>
void Candidates::gather(const T* row, size_t count, const T* maxima, size_t chunk_groups, T bound, double shift,
                        double temperature) {
    make_room(ids_, count + 1);
    int32_t* ids = ids_.data();
    const size_t chunk = chunk_groups * kGroup;
    size_t found = 0;
    for (size_t start = 0; start < count; start += chunk, maxima += chunk_groups) {
        if (*std::max_element(maxima, maxima + chunk_groups) < bound) continue;
        const size_t end = std::min(start + chunk, count);
        for (size_t i = start; i < end; ++i) {  // without branches
            ids[found] = int32_t(i);
            found += row[i] >= bound;
        }
    }
    count_ = found;
    weighed_ = false;
    make_room(scaled_, found);
    for (size_t i = 0; i < found; ++i) scaled_[i] = (double(row[ids[i]]) - shift) / temperature;
}

template void Candidates::gather(const float*, size_t, const float*, size_t, float, double, double);
template void Candidates::gather(const double*, size_t, const double*, size_t, double, double, double);

void Candidates::weigh(const RowKernels& kernels) {
    if (weighed_) return;
    make_room(weights_, count_);
    kernels.exponentials(scaled_.data(), count_, weights_.data());
    weighed_ = true;
}

void Candidates::keep_leading(size_t count) {
    if (count >= count_) return;
    make_room(ordered_, count_);
    const auto first = ordered_.begin(), last = first + ptrdiff_t(count_);
    std::copy_n(scaled_.begin(), count_, first);
    std::nth_element(first, first + ptrdiff_t(count) - 1, last, std::greater<double>());
    const double value = ordered_[count - 1];
    const auto above = std::count_if(first, first + ptrdiff_t(count), [value](double x) { return x > value; });
    keep({value, count - size_t(above)});
}

void Candidates::keep_from(double bound) {
    size_t kept = 0;
    for (size_t i = 0; i < count_; ++i) {
        ids_[kept] = ids_[i];
        scaled_[kept] = scaled_[i];
        if (weighed_) weights_[kept] = weights_[i];
        kept += scaled_[i] >= bound;
    }
    count_ = kept;
}

void Candidates::keep_nucleus(double mass) {
    double masses[kBuckets] = {};
    for (size_t i = 0; i < count_; ++i) masses[bucket_of(scaled_[i])] += weights_[i];
    // Only the bucket that the border is in is looked at closely; if rounding put it beyond all, the last one.
    size_t border = 0;
    double before = 0.0, sum = 0.0;
    for (size_t bucket = 0; bucket < kBuckets && (bucket == 0 || sum < mass); ++bucket) {
        if (masses[bucket] <= 0.0) continue;
        border = bucket;
        before = sum;
        sum += masses[bucket];
    }
    make_room(ranked_, count_ + 1);
    Ranked* end = ranked_.data();
    for (size_t i = 0; i < count_; ++i) {  // without branches
        *end = {scaled_[i], weights_[i]};
        end += bucket_of(scaled_[i]) == border;
    }
    keep(nucleus(ranked_.data(), end, before, mass));
}

void Candidates::keep(Prefix prefix) {
    size_t kept = 0, ties = 0;
    for (size_t i = 0; i < count_; ++i) {
        const double scaled = scaled_[i];
        const bool tied = (scaled == prefix.value) & (ties < prefix.ties);  // without branches
        ids_[kept] = ids_[i];
        scaled_[kept] = scaled;
        if (weighed_) weights_[kept] = weights_[i];
        ties += tied;
        kept += (scaled > prefix.value) | tied;
    }
    count_ = kept;
}

// Quickselect, by mass instead of by count.
Candidates::Prefix Candidates::nucleus(Ranked* first, Ranked* last, double before, double mass) {
    while (last - first > kSortedAtOnce) {
        const double a = first->scaled, b = first[(last - first) / 2].scaled, c = last[-1].scaled;
        const double pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
        Ranked* ties = std::partition(first, last, [pivot](const Ranked& one) { return one.scaled > pivot; });
        double sum = before;
        for (const Ranked* one = first; one != ties; ++one) sum += one->weight;
        if (ties != first && sum >= mass) {
            last = ties;
            continue;
        }
        Ranked* below = std::partition(ties, last, [pivot](const Ranked& one) { return one.scaled == pivot; });
        for (const Ranked* one = ties; one != below; ++one) {
            sum += one->weight;
            if (sum >= mass || (below == last && one + 1 == below)) return {pivot, size_t(one + 1 - ties)};
        }
        before = sum;
        first = below;
    }
    return sorted_nucleus(first, last, before, mass);
}

Candidates::Prefix Candidates::sorted_nucleus(Ranked* first, Ranked* last, double before, double mass) {
    std::sort(first, last, [](const Ranked& a, const Ranked& b) { return a.scaled > b.scaled; });
    Prefix prefix{first->scaled, 0};
    double sum = before;
    for (const Ranked* one = first; one != last && (one == first || sum < mass); ++one) {
        prefix = {one->scaled, one->scaled == prefix.value ? prefix.ties + 1 : 1};
        sum += one->weight;
    }
    return prefix;
}

}  // namespace tandem
