/* Products of packed weights with activations in two planes of 8 bits.
 *
 * Sums of a group are exact integers, and tokens never meet in a sum, so a token's product does not
 * depend on what else is in the batch.
 */
#pragma once
#include "model.h"

#ifdef HAS_VNNI
#define ROWS 8     /* tokens that are multiplied at once */
#define AHEAD 4096 /* bytes of weights asked for before they are wanted: the processor does not look as far */

/* Quantise 32 values to be multiplied with weights of so many bits; group `g` of token `t`. */
INLINE void quantise_group(const float *x, Activations *to, int t, int g, int weight_bits) {
    const int shift = weight_bits == 4 ? 4 : 7;
    floats largest = splat(0);
    UNROLL for (int i = 0; i < GROUP; i += WIDTH) largest = larger(largest, larger(load(x + i), -load(x + i)));
    float most = largest_of(largest);
    float levels = (float)(127 << shift);
    float scale = most / levels, inverse = most > 0 ? levels / most : 0.0f;
    int groups = to->cols / GROUP, half = 1 << (shift - 1);
    int8_t *q = to->quants + ((size_t)t * groups + g) * 2 * GROUP;
    ints sum = {0};
    UNROLL for (int i = 0; i < GROUP; i += WIDTH) {
        floats scaled = load(x + i) * inverse;
        ints sign = (ints)scaled & (int32_t)0x80000000;
        ints value = __builtin_convertvector(scaled + (floats)(sign | (ints)splat(0.5f)), ints);
        ints high = (value + half) >> shift;
        *(bytes *)(q + i) = __builtin_convertvector(high, bytes);
        *(bytes *)(q + GROUP + i) = __builtin_convertvector(value - (high << shift), bytes);
        sum += value;
    }
    size_t place = scale_place(t, g, groups);
    to->scales[place] = scale;
    to->sums[place] = scale * (float)sum_of_ints(sum);
}

/* The integer product of 16 rows with 4 columns of one token, added to `sum`. */
INLINE ints dot4(ints sum, ints weights, int32_t activations) {
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32(activations));
}

/* One panel times `count` tokens from `first` on to out[token][stride]. `bits` and `count` are constants. */
INLINE void multiply_tile(const Matrix *w, int panel, const Activations *x, int first, const int count,
                          const int bits, float *out, int stride) {
    int groups = w->cols / GROUP;
    size_t place = (size_t)panel * groups;
    const uint8_t *quants = w->quants + place * LANES * GROUP * bits / 8;
    const uint16_t *scales = w->scales + place * 2 * LANES;
    const int8_t *xq = x->quants + (size_t)first * groups * 2 * GROUP;
    const float *xscales = x->scales + scale_place(first, 0, groups);
    const float *xsums = x->sums + scale_place(first, 0, groups);
    floats total[ROWS];
    UNROLL for (int t = 0; t < count; t++) total[t] = splat(0);
    for (int g = 0; g < groups; g++) {
        ints weights[8];
        for (int line = 0; line < bits; line++) __builtin_prefetch(quants + AHEAD + 64 * line);
        __builtin_prefetch(scales + AHEAD / (8 * bits) * 2);
        floats scale = halves_to_floats(scales), minimum;
        if (bits == 4) {
            UNROLL for (int j = 0; j < 4; j++) {
                ints packed = *(const ints *)(quants + 64 * j);
                weights[j] = packed & 0x0f0f0f0f;
                weights[j + 4] = (packed >> 4) & 0x0f0f0f0f;
            }
            minimum = halves_to_floats(scales + LANES);
        } else {
            UNROLL for (int j = 0; j < 8; j++) weights[j] = *(const ints *)(quants + 64 * j);
            minimum = scale * -128.0f;
        }
        UNROLL for (int t = 0; t < count; t++) {
            const word *a = (const word *)(xq + ((size_t)t * groups + g) * 2 * GROUP);
            ints high = {0}, low = {0};
            UNROLL for (int j = 0; j < 8; j++) {
                high = dot4(high, bits == 4 ? weights[j] << 4 : weights[j], a[j]);
                low = dot4(low, weights[j], a[8 + j]);
            }
            ints sum = (bits == 4 ? high : high << 7) + low;
            total[t] += __builtin_convertvector(sum, floats) * (scale * xscales[g * TILE + t]);
            total[t] += minimum * xsums[g * TILE + t];
        }
        quants += LANES * GROUP * bits / 8;
        scales += 2 * LANES;
    }
    floats bias = w->bias ? load(w->bias + panel * LANES) : splat(0);
    UNROLL for (int t = 0; t < count; t++) store(out + t * stride, total[t] + bias);
}

#define CASES(bits)                                                                     \
    switch (count < ROWS ? count : ROWS) {                                              \
    case 1: multiply_tile(w, panel, x, first, 1, bits, out, stride); break;             \
    case 2: multiply_tile(w, panel, x, first, 2, bits, out, stride); break;             \
    case 3: multiply_tile(w, panel, x, first, 3, bits, out, stride); break;             \
    case 4: multiply_tile(w, panel, x, first, 4, bits, out, stride); break;             \
    case 5: multiply_tile(w, panel, x, first, 5, bits, out, stride); break;             \
    case 6: multiply_tile(w, panel, x, first, 6, bits, out, stride); break;             \
    case 7: multiply_tile(w, panel, x, first, 7, bits, out, stride); break;             \
    default: multiply_tile(w, panel, x, first, 8, bits, out, stride); break;            \
    }

/* One panel times `count` tokens to out[token][stride]. */
static void multiply_planes(const Matrix *w, int panel, const Activations *x, int first, int count, float *out,
                            int stride) {
    for (; count > 0; first += ROWS, out += ROWS * stride, count -= ROWS) {
        if (w->bits == 4) CASES(4) else CASES(8)
    }
}
#endif
