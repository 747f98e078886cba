// A weight, laid out once for products with few or many rows of activations.
//
// Outputs don't depend on threads, or on which other rows there are.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "dense_kernels.h"
#include "prepared_rows.h"
#include "thread_pool.h"

namespace tandem {

// Where a matrix, or some of its outputs, comes from: [outputs][inputs], row-major, blocks as in a GGUF file.
struct WeightSource {
    WeightFormat format;
    int outputs;
    const void* rows;
    const int64_t* order;  // output i is row order[i]; null: row i
};

class Matrix {
public:
    // The sources' outputs one after another. Packs with all threads of the pool. Throws std::invalid_argument
    // for sizes or an order that are not possible, std::bad_alloc.
    Matrix(int inputs, const std::vector<WeightSource>& sources, const std::string& instruction_set,
           ThreadPool& pool);
    Matrix(const Matrix&) = delete;
    Matrix& operator=(const Matrix&) = delete;

    int outputs() const { return outputs_; }
    int inputs() const { return inputs_; }
    size_t bytes() const { return bytes_; }
    int forms() const { return forms_; }  // of activations that it reads

    // [rows] to [rows][outputs] plus `bias`, unless null. Throws std::invalid_argument for rows that were not
    // prepared for these inputs and forms.
    void multiply(const PreparedRows& rows, float* out, ptrdiff_t out_stride, const float* bias,
                  ThreadPool& pool) const;

    // Outputs `ids` as floats, [count][inputs]: an embedding's lookup. Throws std::out_of_range.
    void rows(const int64_t* ids, int64_t count, float* out) const;

private:
    struct Part {
        WeightFormat format;
        int outputs, first_output, tiles, first_tile;
        size_t tile_bytes, offset;  // offset in memory_
    };
    struct Free {
        void operator()(char* memory) const { std::free(memory); }
    };
    struct Packing;
    struct Product;

    void add_part(const WeightSource& source);
    void pack(const std::vector<WeightSource>& sources, ThreadPool& pool);
    void pack_tile(const Part& part, const WeightSource& source, int tile) const;
    void check(const PreparedRows& rows) const;
    // So many tiles, of 16 outputs each (a source's last one fewer), are worth handing out at once.
    int tiles_together(int64_t rows, int threads) const;
    void multiply_tiles(const PreparedRows& rows, int first, int last, float* out, ptrdiff_t out_stride,
                        const float* bias) const;
    void multiply_part(const Part& part, const PreparedRows& rows, int first, int last, float* out,
                       ptrdiff_t out_stride, const float* bias) const;

    const DenseKernels& kernels_;
    const int inputs_, blocks_;
    int outputs_ = 0, tiles_ = 0, forms_ = 0;
    size_t bytes_ = 0;
    std::vector<Part> parts_;
    std::unique_ptr<char, Free> memory_;
};

}  // namespace tandem
