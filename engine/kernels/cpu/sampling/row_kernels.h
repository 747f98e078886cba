// What sampling does with a whole row of logits, for one instruction set: everything that goes through the vocabulary.
//
// Rows are float32 as the model gives them, or float64 where penalties, bias or bans changed them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem {

constexpr size_t kGroup = 64;      // elements that share a maximum
constexpr size_t kSumBlock = 256;  // elements that share a sum of weights

// Room for a row's maxima: whole chunks of groups, the longest chunk having 16.
constexpr size_t maxima_room(size_t count) { return count / kGroup + 32; }
constexpr size_t block_count(size_t count) { return (count + kSumBlock - 1) / kSumBlock; }

template <class T>
struct Scan {
    T highest;        // -inf for a row of nothing else
    size_t best;      // its first place
    bool has_nan;
    size_t groups;    // maxima written
};

// Functions for rows of one type of element.
template <class T>
struct RowFunctions {
    // Goes through a row once. Each maximum is one of kGroup elements, all elements are in one, and those of a chunk
    // of chunk_groups consecutive maxima are chunk_groups * kGroup consecutive elements.
    Scan<T> (*scan)(const T* row, size_t count, T* maxima);
    size_t chunk_groups;
    // e^((x - highest) * inverse), summed in blocks of kSumBlock into `sums`.
    void (*block_sums)(const T* row, size_t count, double highest, double inverse, double* sums);
    // The same, not summed. At most kSumBlock elements.
    void (*block_weights)(const T* row, size_t count, double highest, double inverse, double* weights);
};

struct RowKernels {
    const char* name;
    RowFunctions<float> raw;
    RowFunctions<double> changed;
    // e^x for x <= 0, relative error below 1e-15; 0 below -708.
    void (*exponentials)(const double* values, size_t count, double* out);
};

template <class T>
const RowFunctions<T>& functions(const RowKernels& kernels);
template <>
inline const RowFunctions<float>& functions(const RowKernels& kernels) {
    return kernels.raw;
}
template <>
inline const RowFunctions<double>& functions(const RowKernels& kernels) {
    return kernels.changed;
}

// Null where the compiler does not have the instruction set.
const RowKernels* baseline_row_kernels();
const RowKernels* avx2_row_kernels();
const RowKernels* avx512_row_kernels();

// Those that go with an instruction set of instruction_sets.h, by its name or "auto".
const RowKernels& row_kernels_named(const std::string& instruction_set);

}  // namespace tandem
