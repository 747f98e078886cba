// The row kernels of one instruction set, included once by each of them inside its namespace and target.
#include "row_vectors.h"

// Maxima of kGroup elements each, one a lane.
template <class T>
inline Vector<T> chunk_maxima(const T* chunk, Bits<T>* largest) {
    Vector<T> highest = load_vector<Vector<T>>(chunk);
    Bits<T> bits = *largest;
    for (size_t i = 0; i < kGroup; ++i) {
        const Vector<T> x = load_vector<Vector<T>>(chunk + i * kLanes<T>);
        highest = x > highest ? x : highest;
        const Bits<T> magnitude = (Bits<T>)x & VectorOf<T>::kAbsolute;
        bits = magnitude > bits ? magnitude : bits;  // a NaN's are above infinity's
    }
    *largest = bits;
    return highest;
}

template <class T>
Scan<T> scan(const T* row, size_t count, T* maxima) {
    constexpr size_t kChunk = kGroup * kLanes<T>;
    Scan<T> found{-std::numeric_limits<T>::infinity(), 0, false, 0};
    Bits<T> largest{};
    size_t best_chunk = 0;
    auto take = [&](const T* chunk, size_t start) {
        const Vector<T> highest = chunk_maxima(chunk, &largest);
        std::memcpy(maxima + found.groups, &highest, sizeof highest);
        found.groups += kLanes<T>;
        for (size_t lane = 0; lane < kLanes<T>; ++lane) {
            if (highest[lane] > found.highest) found.highest = highest[lane], best_chunk = start;
        }
    };
    size_t start = 0;
    for (; start + kChunk <= count; start += kChunk) take(row + start, start);
    if (start < count) {
        T padded[kChunk];
        std::fill(std::copy(row + start, row + count, padded), padded + kChunk, -std::numeric_limits<T>::infinity());
        take(padded, start);
    }
    for (size_t lane = 0; lane < kLanes<T>; ++lane) found.has_nan |= largest[lane] > VectorOf<T>::kInfinity;
    const T* last = row + std::min(best_chunk + kChunk, count);
    found.best = size_t(std::find(row + best_chunk, last, found.highest) - row);
    return found;
}

template <class T>
inline double sum_block(const T* block, double highest, double inverse) {
    constexpr size_t kStep = kLanes<double>;
    Vector<double> even{}, odd{};
    for (size_t i = 0; i < kSumBlock; i += 2 * kStep) {
        even += exponential((load_wide(block + i) - highest) * inverse);
        odd += exponential((load_wide(block + i + kStep) - highest) * inverse);
    }
    const Vector<double> both = even + odd;
    double sum = 0.0;
    for (size_t lane = 0; lane < kStep; ++lane) sum += both[lane];
    return sum;
}

// A block as it is, or what there is of the last one, filled up with what weighs nothing.
template <class T>
inline const T* whole_block(const T* block, size_t left, T* padded) {
    if (left >= kSumBlock) return block;
    std::fill(std::copy(block, block + left, padded), padded + kSumBlock, -std::numeric_limits<T>::infinity());
    return padded;
}

template <class T>
void block_sums(const T* row, size_t count, double highest, double inverse, double* sums) {
    T padded[kSumBlock];
    for (size_t start = 0; start < count; start += kSumBlock) {
        *sums++ = sum_block(whole_block(row + start, count - start, padded), highest, inverse);
    }
}

template <class T>
void block_weights(const T* row, size_t count, double highest, double inverse, double* weights) {
    T padded[kSumBlock];
    const T* block = whole_block(row, count, padded);
    double all[kSumBlock];
    for (size_t i = 0; i < kSumBlock; i += kLanes<double>) {
        const Vector<double> e = exponential((load_wide(block + i) - highest) * inverse);
        std::memcpy(all + i, &e, sizeof e);
    }
    std::copy(all, all + count, weights);
}

inline void exponentials(const double* values, size_t count, double* out) {
    double padded[kLanes<double>] = {};
    for (size_t i = 0; i < count; i += kLanes<double>) {
        const size_t here = std::min(kLanes<double>, count - i);
        std::copy(values + i, values + i + here, padded);
        const Vector<double> e = exponential(load_wide(padded));
        std::memcpy(out + i, &e, here * sizeof(double));
    }
}

inline const RowKernels* row_table(const char* name) {
    static const RowKernels kernels = {
        name,
        {scan<float>, kLanes<float>, block_sums<float>, block_weights<float>},
        {scan<double>, kLanes<double>, block_sums<double>, block_weights<double>},
        exponentials,
    };
    return &kernels;
}
