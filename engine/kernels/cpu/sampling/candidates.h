// The tokens of one row that may still be drawn, and the filters that leave fewer of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "row_kernels.h"

namespace tandem {

// Tokens are ranked by logit, ties by lowest id; every filter keeps a prefix of that one ranking. Candidates are in
// rising order of id.
class Candidates {
public:
    // Takes the elements of a row from `bound` up, shifted down and divided by the temperature.
    template <class T>
    void gather(const T* row, size_t count, const T* maxima, size_t chunk_groups, T bound, double shift,
                double temperature);

    // The first `count` of the ranking.
    void keep_leading(size_t count);
    // Those from `bound` up.
    void keep_from(double bound);
    // The shortest prefix of the ranking that weighs `mass`, or all. Weights are known.
    void keep_nucleus(double mass);
    void weigh(const RowKernels& kernels);

    size_t size() const { return count_; }
    const int32_t* ids() const { return ids_.data(); }
    const double* scaled() const { return scaled_.data(); }
    const double* weights() const { return weights_.data(); }

private:
    struct Ranked {
        double scaled, weight;
    };
    // Everything above a value, and so many of those that have it.
    struct Prefix {
        double value;
        size_t ties;
    };

    void keep(Prefix prefix);
    // Among [first, last), `before` being the mass of all that rank above.
    static Prefix nucleus(Ranked* first, Ranked* last, double before, double mass);
    static Prefix sorted_nucleus(Ranked* first, Ranked* last, double before, double mass);

    size_t count_ = 0;
    bool weighed_ = false;
    std::vector<int32_t> ids_;      // memory is kept from row to row
    std::vector<double> scaled_, weights_, ordered_;
    std::vector<Ranked> ranked_;
};

}  // namespace tandem
