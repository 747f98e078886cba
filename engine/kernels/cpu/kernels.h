// What every instruction set implements: plain functions over plain structs, gathered in a table.
//
// One layer's keys of one KV head in one page are a *block*: [token][dim] in the storage's format, for int8
// followed by one float scale for each token. Blocks are addressed by strides in bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "number_formats.h"
#include "step/step_kernels.h"

namespace tandem {

constexpr int kTileTokens = 64;    // keys, at most, that are scored before the softmax is updated
constexpr int kMaxDim = 256;
constexpr int kDimMultiple = 16;
constexpr int kMaxGroup = 64;      // query heads of one KV head
constexpr int kQueryLanes = 96;    // queries (row times head) of one prefill unit

struct Pages {
    const char* keys;          // block of page 0, of one layer and KV head
    ptrdiff_t page_stride;     // from a page to the next one
    ptrdiff_t head_stride;     // from a KV head's block to the next one's
    ptrdiff_t value_offset;    // from a key block to its value block
    int page_size;             // tokens
    int dim;
};

// One row with the query heads of some consecutive KV heads, over tokens [first, last) of its sequence.
struct DecodeSpan {
    Pages pages;           // of the first KV head
    const int32_t* page_table;
    int first, last;
    int tile_tokens;       // a multiple of 16, at most kTileTokens
    int kv_heads;
    int group;             // query heads of each KV head
    const void* queries;   // [kv_heads][group][dim] in io format
    Format io;
    float scale, softcap;  // softcap 0: none
    float* arranged;       // scratch, [kv_heads][group][padded(dim)]
    float* partials;       // results: [kv_heads] of partial_floats
};

// Elements are worked on in whole chunks.
constexpr int padded(int dim) { return (dim + 63) / 64 * 64; }

// A result for one KV head: maxima [group], sums [group], accumulators [group][padded(dim)], not yet divided
// by the sums, and in an order of their own which merge() knows.
constexpr int partial_floats(int group, int dim) { return group * (padded(dim) + 2); }

// Consecutive rows of one sequence with the query heads of one KV head, each over all tokens up to its own.
struct PrefillSpan {
    Pages pages;
    const int32_t* page_table;
    int rows, group;           // rows * group <= kQueryLanes
    int position;              // of the first row in its sequence
    int window;                // tokens a row sees at most, its own included
    const void* queries;       // first row's first head of this KV head, in io format
    void* outputs;             // likewise
    ptrdiff_t row_stride;      // elements from a row to the next one, of queries and outputs
    Format io;
    float scale, softcap;
    float* scratch;            // prefill_scratch_floats(dim), 64-byte aligned
};

constexpr size_t prefill_scratch_floats(int dim) {
    return size_t(kQueryLanes) * (2 * dim + kTileTokens + 4) + size_t(2) * kTileTokens * dim;
}

struct Kernels {
    const char* name;
    // Prefetches the beginning of `next`, unless null, at the end.
    void (*decode[kFormats])(const DecodeSpan& span, const DecodeSpan* next);
    void (*decode_bfloat16_dot)(const DecodeSpan& span, const DecodeSpan* next);  // null where not native
    void (*prefill[kFormats])(const PrefillSpan& span);
    // Merges one KV head's `count` partials, `stride` floats apart, in their order, into [group][dim].
    void (*merge[kFormats])(const float* partials, int count, ptrdiff_t stride, int group, int dim, Format io,
                            void* output);
    // Writes one token of one KV head, [dim] in io format, into place `offset` of a block.
    void (*append[kFormats])(const void* source, Format io, int dim, int page_size, int offset, char* block);
    float (*sum)(const float* data, size_t count);  // count a multiple of 64; for measuring bandwidth
    StepKernels step;
};

// Null where the compiler or processor does not have the instruction set.
const Kernels* scalar_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* avx512_bf16_kernels();
const Kernels* neon_kernels();

}  // namespace tandem
