#include "matrix.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <new>
#include <stdexcept>

#include "pack.h"

namespace tandem {

namespace {

constexpr size_t kAlignment = 64;
constexpr int kChunksPerThread = 4;              // of tiles, so that threads end together
constexpr int64_t kRowBytes = 768 * 1024;        // of activations that stay in the L2 cache while tiles go by
constexpr size_t kTileBytes = 256 * 1024;        // of weights that a thread takes at once
constexpr double kSmall = 64 * 1024;             // bytes of weights that are not worth waking another thread

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void demand(bool good, const char* what) {
    if (!good) throw std::invalid_argument(what);
}

void check_order(const WeightSource& source) {
    if (!source.order) return;
    for (int i = 0; i < source.outputs; ++i)
        demand(source.order[i] >= 0 && source.order[i] < source.outputs, "a weight's order names a row beyond it");
}

}  // namespace

struct Matrix::Packing {
    const Matrix& matrix;
    const std::vector<WeightSource>& sources;
    std::atomic<int> next{0};
};

struct Matrix::Product {
    const Matrix& matrix;
    const PreparedRows& rows;
    float* out;
    ptrdiff_t out_stride;
    const float* bias;
    int together;
    std::atomic<int> next{0};
};

Matrix::Matrix(int inputs, const std::vector<WeightSource>& sources, const std::string& instruction_set,
               ThreadPool& pool)
    : kernels_(dense_kernels_named(instruction_set)),
      inputs_(inputs),
      blocks_(int((int64_t(inputs) + kBlockInputs - 1) / kBlockInputs)) {
    demand(inputs > 0 && inputs <= INT_MAX / 64, "a weight needs inputs");
    demand(!sources.empty(), "a weight needs outputs");
    for (const WeightSource& source : sources) add_part(source);
    memory_.reset(static_cast<char*>(std::aligned_alloc(kAlignment, aligned(bytes_))));
    if (!memory_) throw std::bad_alloc();
    pack(sources, pool);
}

void Matrix::add_part(const WeightSource& source) {
    demand(index_of(source.format) >= 0, "there is no such format of weights");
    demand(source.outputs > 0 && source.outputs <= INT_MAX / 64 - outputs_, "a weight needs outputs");
    demand(source.rows != nullptr, "a weight needs its numbers");
    const WeightLayout layout = layout_of(source.format);
    demand(!layout.integers || inputs_ % layout.super_inputs() == 0, "a row of a weight holds whole blocks");
    check_order(source);
    Part part{};
    part.format = source.format;
    part.outputs = source.outputs;
    part.first_output = outputs_;
    part.tiles = (source.outputs + kTileOutputs - 1) / kTileOutputs;
    part.first_tile = tiles_;
    part.tile_bytes = size_t(blocks_ / layout.super) * size_t(layout.super_bytes());
    part.offset = aligned(bytes_);
    parts_.push_back(part);
    bytes_ = part.offset + size_t(part.tiles) * part.tile_bytes;
    outputs_ += source.outputs;
    tiles_ += part.tiles;
    forms_ |= layout.integers ? kIntegerForm : kFloatForm;
}

void Matrix::pack(const std::vector<WeightSource>& sources, ThreadPool& pool) {
    Packing packing{*this, sources};
    pool.run(
        [](void* argument, int) {
            Packing& all = *static_cast<Packing*>(argument);
            for (int tile; (tile = all.next.fetch_add(1)) < all.matrix.tiles_;) {
                size_t i = all.matrix.parts_.size() - 1;
                while (all.matrix.parts_[i].first_tile > tile) --i;
                const Part& part = all.matrix.parts_[i];
                all.matrix.pack_tile(part, all.sources[i], tile - part.first_tile);
            }
        },
        &packing);
}

void Matrix::pack_tile(const Part& part, const WeightSource& source, int tile) const {
    const WeightLayout layout = layout_of(part.format);
    const size_t row_bytes = layout.integers ? size_t(blocks_ / layout.super) * size_t(layout.source_bytes)
                                             : size_t(inputs_) * size_t(layout.bits / 8);
    char* const to = memory_.get() + part.offset + size_t(tile) * part.tile_bytes;
    std::memset(to, 0, part.tile_bytes);
    const int first = tile * kTileOutputs, last = std::min(first + kTileOutputs, part.outputs);
    for (int i = first; i < last; ++i) {
        const size_t row = source.order ? size_t(source.order[i]) : size_t(i);
        pack_row(part.format, static_cast<const char*>(source.rows) + row * row_bytes, inputs_, blocks_, i - first, to);
    }
}

void Matrix::check(const PreparedRows& rows) const {
    demand(rows.inputs() == inputs_ && (rows.forms() & forms_) == forms_,
           "the rows were not prepared for this weight");
}

int Matrix::tiles_together(int64_t rows, int threads) const {
    const int most = int(std::max<size_t>(1, kTileBytes / std::max<size_t>(1, bytes_ / size_t(tiles_))));
    const int chunks = threads > 1 ? kChunksPerThread * threads : 1;
    const int fair = (tiles_ + chunks - 1) / chunks;
    return rows > kGroupRows ? std::min(fair, std::max(most, 2)) : fair;
}

void Matrix::multiply(const PreparedRows& rows, float* out, ptrdiff_t out_stride, const float* bias,
                      ThreadPool& pool) const {
    check(rows);
    const double work = double(bytes_) * double(rows.rows() + kGroupRows - 1) / kGroupRows;
    Product product{*this, rows, out, out_stride, bias, tiles_together(rows.rows(), pool.threads())};
    pool.run(
        [](void* argument, int) {
            Product& all = *static_cast<Product*>(argument);
            const int tiles = all.matrix.tiles_;
            for (int first; (first = all.next.fetch_add(all.together)) < tiles;)
                all.matrix.multiply_tiles(all.rows, first, std::min(first + all.together, tiles), all.out,
                                          all.out_stride, all.bias);
        },
        &product, work < kSmall);
}

void Matrix::multiply_tiles(const PreparedRows& rows, int first, int last, float* out, ptrdiff_t out_stride,
                            const float* bias) const {
    for (const Part& part : parts_) {
        const int from = std::max(first - part.first_tile, 0), to = std::min(last - part.first_tile, part.tiles);
        if (from >= to) continue;
        multiply_part(part, rows, from, to, out + part.first_output, out_stride,
                      bias ? bias + part.first_output : nullptr);
    }
}

void Matrix::multiply_part(const Part& part, const PreparedRows& rows, int first, int last, float* out,
                           ptrdiff_t out_stride, const float* bias) const {
    const auto& multiply = kernels_.multiply[index_of(part.format)];
    const bool integers = layout_of(part.format).integers;
    const int64_t groups = (rows.rows() + kGroupRows - 1) / kGroupRows;
    const int64_t group_bytes = int64_t(sizeof(ActivationBlock)) * (integers ? 1 : 2) * blocks_ * kGroupRows;
    const int64_t together = std::max<int64_t>(1, kRowBytes / group_bytes);
    for (int64_t chunk = 0; chunk < groups; chunk += together) {
        const int64_t end = std::min(chunk + together, groups);
        for (int tile = first; tile < last; ++tile) {
            const int output = tile * kTileOutputs;
            TileSpan span{};
            span.tile = memory_.get() + part.offset + size_t(tile) * part.tile_bytes;
            span.blocks = blocks_;
            span.outputs = std::min(kTileOutputs, part.outputs - output);
            span.bias = bias ? bias + output : nullptr;
            span.out_stride = out_stride;
            for (int64_t group = chunk; group < end; ++group) {
                if (integers) span.blocks_of_rows = rows.integers(group);
                if (!integers) span.lines_of_rows = rows.floats(group);
                span.prefetch = group == chunk;
                span.out = out + group * kGroupRows * out_stride + output;
                multiply[rows.group_rows(group) - 1](span);
            }
        }
    }
}

void Matrix::rows(const int64_t* ids, int64_t count, float* out) const {
    for (int64_t i = 0; i < count; ++i)
        if (ids[i] < 0 || ids[i] >= outputs_) throw std::out_of_range("a weight has no such row");
    for (int64_t i = 0; i < count; ++i, out += inputs_) {
        size_t p = parts_.size() - 1;
        while (parts_[p].first_output > ids[i]) --p;
        const Part& part = parts_[p];
        const int output = int(ids[i]) - part.first_output;
        const char* const tile = memory_.get() + part.offset + size_t(output / kTileOutputs) * part.tile_bytes;
        unpack_row(part.format, tile, output % kTileOutputs, inputs_, out);
    }
}

}  // namespace tandem
