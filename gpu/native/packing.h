/* From ggml's blocks to panels, and rows of the embedding. */
#pragma once
#include "model.h"

enum { KIND_F32 = 0, KIND_F16 = 1, KIND_Q4_0 = 2, KIND_Q4_1 = 3, KIND_Q8_0 = 8 };

#define LARGEST_IN_TILES 255.0f /* 2^8 times a weight is to fit float16 on the way to bfloat16 */

static int block_bytes(int kind) { return kind == KIND_Q4_0 ? 18 : kind == KIND_Q4_1 ? 20 : 34; }

/* What no number in so many groups exceeds in size. */
static float largest_of_packed(int kind, const uint16_t *scales, int groups) {
    uint16_t scale[LANES] = {0}, minimum[LANES] = {0}; /* bits without the sign, which are in order */
    for (int g = 0; g < groups; g++, scales += 2 * LANES)
        for (int lane = 0; lane < LANES; lane++) {
            uint16_t one = scales[lane] & 0x7fff, other = scales[LANES + lane] & 0x7fff;
            scale[lane] = one > scale[lane] ? one : scale[lane];
            minimum[lane] = other > minimum[lane] ? other : minimum[lane];
        }
    float largest = 0, levels = kind == KIND_Q8_0 ? 128 : 15;
    for (int lane = 0; lane < LANES; lane++) {
        float size = levels * half_to_float(scale[lane]) + half_to_float(minimum[lane]);
        largest = size > largest ? size : largest;
    }
    return largest;
}

/* Pack rows of ggml blocks of `kind`. `order[r]` is the row of `blocks` that becomes row r.
 * rows are a multiple of 16 and cols of 32. Whether all numbers are of a size that tiles can take. */
int32_t stepahead_pack(int32_t kind, int32_t rows, int32_t cols, const uint8_t *blocks,
                       const int32_t *order, uint8_t *quants, uint16_t *scales) {
    int groups = cols / GROUP, size = block_bytes(kind);
    for (int panel = 0; panel < rows / LANES; panel++) {
        for (int lane = 0; lane < LANES; lane++) {
            const uint8_t *row = blocks + (size_t)order[panel * LANES + lane] * groups * size;
            for (int g = 0; g < groups; g++, row += size) {
                size_t place = (size_t)panel * groups + g;
                uint16_t *out = scales + place * 2 * LANES;
                memcpy(out + lane, row, 2);
                if (kind == KIND_Q8_0) {
                    uint8_t *q = quants + place * LANES * GROUP;
                    for (int i = 0; i < GROUP; i++)
                        q[(i / 4 * LANES + lane) * 4 + i % 4] = (uint8_t)(row[2 + i] + 128);
                } else {
                    uint16_t minimum = 0;
                    if (kind == KIND_Q4_1) memcpy(&minimum, row + 2, 2);
                    else minimum = float_to_half(-8.0f * half_to_float(out[lane]));
                    out[LANES + lane] = minimum;
                    uint8_t *q = quants + place * LANES * GROUP / 2;
                    const uint8_t *nibbles = row + size - 16;
                    for (int j = 0; j < 4; j++) memcpy(q + (j * LANES + lane) * 4, nibbles + 4 * j, 4);
                }
            }
        }
    }
    return largest_of_packed(kind, scales, rows / LANES * groups) < LARGEST_IN_TILES;
}

/* One row of the embedding in float32. */
static void look_up(const Model *model, int token, float *out) {
    int cols = model->hidden, kind = model->embedding_kind;
    if (kind == KIND_F32) {
        memcpy(out, (const float *)model->embedding + (size_t)token * cols, (size_t)cols * 4);
        return;
    }
    if (kind == KIND_F16) {
        const uint16_t *row = (const uint16_t *)model->embedding + (size_t)token * cols;
        for (int i = 0; i < cols; i += WIDTH) store(out + i, halves_to_floats(row + i));
        return;
    }
    int size = block_bytes(kind), groups = cols / GROUP;
    const uint8_t *row = model->embedding + (size_t)token * groups * size;
    for (int g = 0; g < groups; g++, row += size, out += GROUP) {
        uint16_t half, low = 0;
        memcpy(&half, row, 2);
        float scale = half_to_float(half);
        if (kind == KIND_Q8_0) {
            for (int i = 0; i < GROUP; i++) out[i] = scale * (int8_t)row[2 + i];
            continue;
        }
        if (kind == KIND_Q4_1) memcpy(&low, row + 2, 2);
        float minimum = kind == KIND_Q4_1 ? half_to_float(low) : -8.0f * scale;
        const uint8_t *nibbles = row + size - 16;
        for (int i = 0; i < 16; i++) {
            out[i] = scale * (nibbles[i] & 15) + minimum;
            out[i + 16] = scale * (nibbles[i] >> 4) + minimum;
        }
    }
}
