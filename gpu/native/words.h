/* Products of packed weights with activations of 16 bits, for processors that do not multiply bytes in
 * groups of four: the products of two columns are added at once, and those of a group are exact
 * integers.
 *
 * Tokens never meet in a sum, and every token's sums run over the groups in their order, whether
 * weights are unpacked on the way or before: a token's product does not depend on what else is in the
 * batch.
 */
#pragma once
#include "model.h"

#ifndef HAS_VNNI
#define COUNT 4    /* tokens that are multiplied at once, with two vectors of rows: their sums fit the registers */
#define AHEAD 2048 /* bytes of weights asked for before they are wanted: the processor does not look as far */

/* Weights are unpacked as pairs of columns. A pair is what lies in the same place of the two halves of
 * a packed word, which is not two neighbours: activations are put in the same order. */
INLINE int column_of(int word) {
    int pair = word / 2;
    return pair / 4 * 4 + pair % 2 * LANES + pair % 4 / 2 + word % 2 * 2;
}

#ifdef HAS_AVX2
/* Columns 0 to 7 of x and 16 behind them, in the order of pairs. */
INLINE __m256i words_of(const float *x, floats inverse) {
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m256i low = _mm256_cvtps_epi32((__m256)(load(x) * inverse)), high = _mm256_cvtps_epi32((__m256)(load(x + LANES) * inverse));
    return _mm256_shuffle_epi8(_mm256_packs_epi32(low, high), order);
}
#endif

/* 32 values times `inverse` as words; their sum. */
INLINE int quantise_words(const float *x, float inverse, int16_t *words) {
#ifdef HAS_AVX2
    __m256i first = words_of(x, splat(inverse)), second = words_of(x + 8, splat(inverse)), ones = _mm256_set1_epi16(1);
    _mm256_storeu_si256((__m256i *)words, first);
    _mm256_storeu_si256((__m256i *)(words + LANES), second);
    return sum_of_ints((ints)_mm256_madd_epi16(first, ones) + (ints)_mm256_madd_epi16(second, ones));
#else
    int sum = 0;
    for (int i = 0; i < GROUP; i++) {
        float value = x[column_of(i)] * inverse;
        words[i] = (int16_t)(value + (value < 0 ? -0.5f : 0.5f));
        sum += words[i];
    }
    return sum;
#endif
}

/* Keep 32 values; group `g` of token `t`. */
INLINE void keep_words(const float *x, Activations *to, int t, int g) {
    floats largest = splat(0);
    UNROLL for (int i = 0; i < GROUP; i += WIDTH) largest = larger(largest, larger(load(x + i), -load(x + i)));
    const float levels = 32767.0f;
    float most = largest_of(largest), scale = most / levels;
    int groups = to->cols / GROUP;
    int16_t *words = to->words + ((size_t)t * groups + g) * GROUP;
    int sum = quantise_words(x, most > 0 ? levels / most : 0.0f, words);
    size_t place = scale_place(t, g, groups);
    to->scales[place] = scale;
    to->sums[place] = scale * (float)sum;
}

/* The `pair`th of a group's 16 pairs of columns, for a vector of rows from `row` on: from what is
 * packed in 4 or 8 bits, or, where `bits` is 16, unpacked. All are constants but where it lies. */
INLINE ints pair_of(const void *group, const int pair, const int row, const int bits) {
    const int32_t *rows = (const int32_t *)group + row;
    if (bits == 16) return *(const ints *)(rows + pair * LANES);
    if (bits == 4) return *(const ints *)(rows + pair / 4 * LANES) >> pair % 4 * 4 & 0x000f000f;
    return *(const ints *)(rows + (pair / 4 + pair % 2 * 4) * LANES) >> pair % 4 / 2 * 8 & 0x00ff00ff;
}

INLINE ints add_pairs(ints sum, ints weights, int32_t activations) {
#if defined(__AVXVNNI__) && defined(HAS_AVX2)
    return (ints)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)weights, _mm256_set1_epi32(activations));
#elif defined(HAS_AVX2)
    return sum + (ints)_mm256_madd_epi16((__m256i)weights, _mm256_set1_epi32(activations));
#elif defined(__SSE2__)
    return sum + (ints)_mm_madd_epi16((__m128i)weights, _mm_set1_epi32(activations));
#else
    return sum + (weights & 0xffff) * (int32_t)(int16_t)activations + (weights >> 16) * (activations >> 16);
#endif
}

/* Group `g` of the matrix: [16 pairs][16 rows][2]. */
INLINE void unpack_words(const Matrix *w, size_t g, Unpacked *to) {
    const uint8_t *quants = w->quants + g * (LANES * GROUP / 8) * w->bits;
    UNROLL for (int pair = 0; pair < 16; pair++)
        UNROLL for (int row = 0; row < LANES; row += WIDTH)
            *(ints *)(to + 2 * (pair * LANES + row)) = w->bits == 4 ? pair_of(quants, pair, row, 4) : pair_of(quants, pair, row, 8);
}

/* Two vectors of a panel's rows times `count` tokens; `bits` is a constant, and 16 for what was
 * unpacked. */
INLINE void multiply_pairs(const Matrix *w, int panel, const int row, const void *weights, const Activations *x,
                           int first, const int count, const int bits, float *out, int stride) {
    int groups = w->cols / GROUP;
    const size_t size = LANES * GROUP / 8 * bits;
    const char *group = weights;
    const uint16_t *scales = w->scales + (size_t)panel * groups * 2 * LANES + row;
    const int16_t *words = x->words + (size_t)first * w->cols;
    const float *xscales = x->scales + scale_place(first, 0, groups);
    const float *xsums = x->sums + scale_place(first, 0, groups);
    floats total[2 * COUNT];
    UNROLL for (int i = 0; i < 2 * count; i++)
        total[i] = w->bias ? load(w->bias + panel * LANES + row + i % 2 * WIDTH) : splat(0);
    for (int g = 0; g < groups; g++, group += size, scales += 2 * LANES, words += GROUP) {
        for (size_t line = 0; bits != 16 && line < size; line += 64) __builtin_prefetch(group + AHEAD + line);
        ints sums[2 * COUNT];
        UNROLL for (int i = 0; i < 2 * count; i++) sums[i] = (ints){0};
        UNROLL for (int pair = 0; pair < 16; pair++) {
            ints low = pair_of(group, pair, row, bits), high = pair_of(group, pair, row + WIDTH, bits);
            IN_REGISTERS(low, high); /* loaded once, not for every token */
            UNROLL for (int t = 0; t < count; t++) {
                int32_t both = *(const word *)(words + (size_t)t * w->cols + 2 * pair);
                sums[2 * t] = add_pairs(sums[2 * t], low, both);
                sums[2 * t + 1] = add_pairs(sums[2 * t + 1], high, both);
                IN_REGISTERS(sums[2 * t], sums[2 * t + 1]); /* else the compiler makes a tree of all products */
            }
        }
        UNROLL for (int half = 0; half < 2; half++) {
            floats scale = halves_to_floats(scales + half * WIDTH), minimum = scale * -128.0f;
            if (w->bits == 4) minimum = halves_to_floats(scales + LANES + half * WIDTH);
            UNROLL for (int t = 0; t < count; t++) {
                floats *sum = total + 2 * t + half;
                *sum += __builtin_convertvector(sums[2 * t + half], floats) * (scale * xscales[g * TILE + t]);
                *sum += minimum * xsums[g * TILE + t];
            }
        }
    }
    UNROLL for (int i = 0; i < 2 * count; i++) store(out + i / 2 * stride + row + i % 2 * WIDTH, total[i]);
}

/* A panel times `count` tokens; `count` and `bits` are constants. */
INLINE void multiply_panel(const Matrix *w, int panel, const void *weights, const Activations *x, int first,
                           const int count, const int bits, float *out, int stride) {
    for (int row = 0; row < LANES; row += 2 * WIDTH) multiply_pairs(w, panel, row, weights, x, first, count, bits, out, stride);
}

#define MULTIPLY(bits)                                                                       \
    switch (count - t) {                                                                     \
    case 1: multiply_panel(w, panel, weights, x, first + t, 1, bits, to, stride); break;     \
    case 2: multiply_panel(w, panel, weights, x, first + t, 2, bits, to, stride); break;     \
    case 3: multiply_panel(w, panel, weights, x, first + t, 3, bits, to, stride); break;     \
    default: multiply_panel(w, panel, weights, x, first + t, COUNT, bits, to, stride);       \
    }

/* One panel times `count` tokens to out[token][stride]; `unpacked` is null where weights are as they are
 * packed. */
static void multiply_words(const Matrix *w, int panel, const Unpacked *unpacked, const Activations *x, int first,
                           int count, float *out, int stride) {
    size_t place = (size_t)panel * (w->cols / GROUP);
    const void *weights = unpacked ? (const void *)unpacked : w->quants + place * LANES * GROUP * w->bits / 8;
    for (int t = 0; t < count; t += COUNT) {
        float *to = out + t * stride;
        if (unpacked) MULTIPLY(16)
        else if (w->bits == 4) MULTIPLY(4)
        else MULTIPLY(8)
    }
}
#endif
