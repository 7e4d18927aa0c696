/* Products in float32, for many tokens where the processor has neither matrix tiles nor the
 * instruction for integer products: weights are unpacked once and multiplied with every token. */
#pragma once
#include "model.h"

#if !defined(HAS_VNNI) && !defined(HAS_AVX2)
#define COUNT 6 /* tokens that are multiplied at once: their sums fit the registers */

/* Panels from `first` on: [panel][column][16 rows]. */
static void unpack_floats(const Matrix *w, int first, int count, float *to) {
    int groups = w->cols / GROUP;
    size_t place = (size_t)first * groups, size = LANES * GROUP * w->bits / 8;
    for (size_t g = place; g < place + (size_t)count * groups; g++, to += LANES * GROUP) {
        const uint8_t *quants = w->quants + g * size;
        for (int row = 0; row < LANES; row += WIDTH) {
            floats scale = halves_to_floats(w->scales + g * 2 * LANES + row), minimum = scale * -128.0f;
            if (w->bits == 4) minimum = halves_to_floats(w->scales + g * 2 * LANES + LANES + row);
            for (int j = 0; j < w->bits; j++) {
                ints packed = *(const ints *)(quants + 64 * j + 4 * row);
                for (int i = 0; i < 4; i++) {
                    ints low = packed >> (8 * i) & (w->bits == 4 ? 15 : 255);
                    store(to + (4 * j + i) * LANES + row, __builtin_convertvector(low, floats) * scale + minimum);
                    if (w->bits == 8) continue;
                    ints upper = packed >> (8 * i + 4) & 15;
                    store(to + (4 * j + i + 16) * LANES + row, __builtin_convertvector(upper, floats) * scale + minimum);
                }
            }
        }
    }
}

/* One panel times `count` tokens, a constant. */
INLINE void multiply_some(const float *weights, const float *x, int cols, const int count, const float *bias,
                          float (*out)[LANES]) {
    floats total[COUNT][PARTS];
    UNROLL for (int i = 0; i < count * PARTS; i++)
        total[i / PARTS][i % PARTS] = bias ? *(const floats *)(bias + i % PARTS * WIDTH) : (floats){};
    for (int c = 0; c < cols; c++) {
        floats w[PARTS];
        UNROLL for (int p = 0; p < PARTS; p++) w[p] = *(const floats *)(weights + c * LANES + p * WIDTH);
        UNROLL for (int i = 0; i < count * PARTS; i++)
            total[i / PARTS][i % PARTS] += w[i % PARTS] * x[i / PARTS * cols + c];
    }
    UNROLL for (int i = 0; i < count * PARTS; i++) *(floats *)(out[i / PARTS] + i % PARTS * WIDTH) = total[i / PARTS][i % PARTS];
}

static void multiply_floats(const Matrix *w, int panel, const float *weights, const Activations *x, int first,
                            int count, float (*out)[LANES]) {
    const float *rows = x->floats + (size_t)first * w->cols;
    const float *bias = w->bias ? w->bias + panel * LANES : NULL;
    int t = 0;
    for (; t + COUNT <= count; t += COUNT) multiply_some(weights, rows + t * w->cols, w->cols, COUNT, bias, out + t);
    for (; t < count; t++) multiply_some(weights, rows + t * w->cols, w->cols, 1, bias, out + t);
}
#endif
