#include "pack.h"

#include <algorithm>
#include <cstring>

#include "gguf_blocks.h"
#include "number_formats.h"

namespace tandem {

namespace {

// Where the parts of a group's codes lie in a block, for one output.
uint8_t* at(char* block, int line, int output) {
    return reinterpret_cast<uint8_t*>(block) + 64 * line + 4 * output;
}
const uint8_t* at(const char* block, int line, int output) {
    return reinterpret_cast<const uint8_t*>(block) + 64 * line + 4 * output;
}

void put_codes(const WeightLayout& layout, const uint8_t* codes, int output, char* block) {
    for (int i = 0; i < kBlockInputs; ++i) {
        const int group = i / 4, byte = i % 4;
        if (layout.bits == 8) {
            at(block, group, output)[byte] = codes[i];
            continue;
        }
        at(block, group % 4, output)[byte] |= uint8_t((codes[i] & 15) << (group < 4 ? 0 : 4));
        if (layout.bits == 5) at(block, 4, output)[byte] |= uint8_t((codes[i] >> 4) << group);
        if (layout.bits == 6) at(block, 4 + group / 4, output)[byte] |= uint8_t((codes[i] >> 4) << 2 * (group % 4));
    }
}

int get_code(const WeightLayout& layout, const char* block, int output, int input) {
    const int group = input / 4, byte = input % 4;
    if (layout.bits == 8) return at(block, group, output)[byte];
    int code = at(block, group % 4, output)[byte] >> (group < 4 ? 0 : 4) & 15;
    if (layout.bits == 5) code |= (at(block, 4, output)[byte] >> group & 1) << 4;
    if (layout.bits == 6) code |= (at(block, 4 + group / 4, output)[byte] >> 2 * (group % 4) & 3) << 4;
    return code;
}

void put_half(char* halves, int output, uint16_t bits) { std::memcpy(halves + 2 * output, &bits, 2); }

float get_half(const char* halves, int output) {
    float16 half;
    std::memcpy(&half, halves + 2 * output, 2);
    return to_float(half);
}

void pack_integers(WeightFormat format, const char* row, int blocks, int output, char* tile) {
    const WeightLayout layout = layout_of(format);
    GgufBlock source;
    for (int first = 0; first < blocks; first += layout.super) {
        read_gguf_block(format, row, source);
        row += layout.source_bytes;
        char* block = tile;
        if (layout.super > 1) {
            put_half(tile, output, source.scale);
            if (layout.minima) put_half(tile + 2 * kTileOutputs, output, source.minimum);
            block += layout.header_bytes();
        }
        for (int b = 0; b < layout.super; ++b, block += layout.block_bytes()) {
            put_codes(layout, source.codes + b * kBlockInputs, output, block);
            char* const scales = block + layout.line_bytes();
            if (layout.super == 1) {
                put_half(scales, output, source.scale);
                if (layout.minima) put_half(scales + 2 * kTileOutputs, output, source.minimum);
            } else {
                for (int i = 0; i < layout.scales; ++i)
                    scales[i * kTileOutputs + output] = char(source.scales[b * layout.scales + i]);
                if (layout.minima) scales[kTileOutputs + output] = char(source.minima[b]);
            }
        }
        tile += layout.super_bytes();
    }
}

void unpack_block(const WeightLayout& layout, const char* header, const char* block, int output, float* out) {
    const char* const scales = block + layout.line_bytes();
    float scale[2], minimum = 0.0f;
    for (int half = 0; half < 2; ++half) {
        scale[half] = layout.super == 1 ? get_half(scales, output)
                                        : get_half(header, output) *
                                              float(int8_t(scales[half % layout.scales * kTileOutputs + output]));
    }
    if (layout.minima) {
        minimum = layout.super == 1 ? get_half(scales + 2 * kTileOutputs, output)
                                    : -get_half(header + 2 * kTileOutputs, output) *
                                          float(int8_t(scales[kTileOutputs + output]));
    }
    for (int i = 0; i < kBlockInputs; ++i) {
        const float product = scale[2 * i / kBlockInputs] * float(get_code(layout, block, output, i) - layout.offset);
        out[i] = layout.minima ? product + minimum : product;
    }
}

// In elements from the beginning of the tile.
size_t float_place(WeightFormat format, int input, int output) {
    if (format == WeightFormat::bfloat16)
        return size_t(input / 2 * 2 * kTileOutputs + output * 2 + input % 2);
    return size_t(input * kTileOutputs + output);
}

template <class Element>
void pack_floats(WeightFormat format, const void* row, int inputs, int output, char* tile) {
    for (int i = 0; i < inputs; ++i)
        std::memcpy(tile + float_place(format, i, output) * sizeof(Element),
                    static_cast<const char*>(row) + size_t(i) * sizeof(Element), sizeof(Element));
}

template <class Element>
void unpack_floats(WeightFormat format, const char* tile, int output, int inputs, float* out) {
    for (int i = 0; i < inputs; ++i)
        out[i] = to_float(reinterpret_cast<const Element*>(tile)[float_place(format, i, output)]);
}

}  // namespace

void pack_row(WeightFormat format, const void* row, int inputs, int blocks, int output, char* tile) {
    switch (format) {
        case WeightFormat::float32: return pack_floats<float>(format, row, inputs, output, tile);
        case WeightFormat::float16: return pack_floats<float16>(format, row, inputs, output, tile);
        case WeightFormat::bfloat16: return pack_floats<bfloat16>(format, row, inputs, output, tile);
        default: return pack_integers(format, static_cast<const char*>(row), blocks, output, tile);
    }
}

void unpack_row(WeightFormat format, const char* tile, int output, int inputs, float* out) {
    switch (format) {
        case WeightFormat::float32: return unpack_floats<float>(format, tile, output, inputs, out);
        case WeightFormat::float16: return unpack_floats<float16>(format, tile, output, inputs, out);
        case WeightFormat::bfloat16: return unpack_floats<bfloat16>(format, tile, output, inputs, out);
        default: break;
    }
    const WeightLayout layout = layout_of(format);
    for (int i = 0; i < inputs; i += layout.super_inputs(), tile += layout.super_bytes())
        for (int b = 0; b < layout.super; ++b)
            unpack_block(layout, tile, tile + layout.header_bytes() + b * layout.block_bytes(), output,
                         out + i + b * kBlockInputs);
}

}  // namespace tandem
