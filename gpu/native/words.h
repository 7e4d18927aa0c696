/* Products of packed weights with activations of 16 bits, for processors with AVX2 that do not
 * multiply bytes in groups of four: the products of two columns are added by one instruction, and
 * those of a group are exact integers.
 *
 * Tokens never meet in a sum, and every token's sums run over the groups in their order, whether
 * weights are unpacked on the way or before: a token's product does not depend on what else is in the
 * batch.
 */
#pragma once
#include "model.h"

#ifdef HAS_AVX2
#define COUNT 4 /* tokens that are multiplied at once: their sums fit the registers */
#define AHEAD 2048 /* bytes of weights asked for before they are wanted: the processor does not look as far */

/* Columns 8i to 8i + 7 and 16 behind them, as words in the order in which weights are unpacked: a
 * pair is what lies in the same place of the two halves of a packed word, which is not two
 * neighbours. */
INLINE __m256i words_of(const float *x, __m256 inverse) {
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
    __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), inverse));
    return _mm256_shuffle_epi8(_mm256_packs_epi32(low, high), order);
}

/* Keep 32 values; group `g` of token `t`. */
INLINE void keep_words(const float *x, Activations *to, int t, int g) {
    floats largest = splat(0);
    UNROLL for (int i = 0; i < GROUP; i += WIDTH) largest = larger(largest, larger(load(x + i), -load(x + i)));
    const float levels = 32767.0f;
    float most = largest_of(largest), scale = most / levels;
    __m256 inverse = _mm256_set1_ps(most > 0 ? levels / most : 0.0f);
    int groups = to->cols / GROUP;
    int16_t *words = to->words + ((size_t)t * groups + g) * GROUP;
    __m256i first = words_of(x, inverse), second = words_of(x + 8, inverse), ones = _mm256_set1_epi16(1);
    _mm256_storeu_si256((__m256i *)words, first);
    _mm256_storeu_si256((__m256i *)(words + LANES), second);
    ints sums = (ints)_mm256_madd_epi16(first, ones) + (ints)_mm256_madd_epi16(second, ones);
    size_t place = scale_place(t, g, groups);
    to->scales[place] = scale;
    to->sums[place] = scale * (float)sum_of_ints(sums);
}

/* Two columns of 8 rows: the `pair`th of a group's 16, from what is packed in 4 or 8 bits, or, where
 * `bits` is 16, unpacked. All are constants but where it lies. */
INLINE __m256i pair_of(const void *group, const int pair, const int half, const int bits) {
    const __m256i *vectors = (const __m256i *)group + half;
    if (bits == 16) return _mm256_loadu_si256(vectors + 2 * pair);
    if (bits == 4) {
        __m256i packed = _mm256_loadu_si256(vectors + pair / 4 * 2);
        return _mm256_and_si256(_mm256_srli_epi16(packed, pair % 4 * 4), _mm256_set1_epi16(15));
    }
    __m256i packed = _mm256_loadu_si256(vectors + (pair / 4 + pair % 2 * 4) * 2);
    return pair % 4 < 2 ? _mm256_and_si256(packed, _mm256_set1_epi16(255)) : _mm256_srli_epi16(packed, 8);
}

INLINE __m256i add_pairs(__m256i sum, __m256i weights, __m256i activations) {
#ifdef __AVXVNNI__
    return _mm256_dpwssd_avx_epi32(sum, weights, activations);
#else
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(weights, activations));
    __asm__("" : "+x"(sum)); /* else the compiler makes a tree of the sums, and has no registers for it */
    return sum;
#endif
}

/* Panels from `first` on: [panel][group][16 pairs][16 rows][2]. */
static void unpack_words(const Matrix *w, int first, int count, int16_t *to) {
    int groups = w->cols / GROUP;
    size_t place = (size_t)first * groups, size = LANES * GROUP * w->bits / 8;
    for (size_t g = place; g < place + (size_t)count * groups; g++, to += LANES * GROUP) {
        const uint8_t *quants = w->quants + g * size;
        UNROLL for (int i = 0; i < 32; i++)
            _mm256_storeu_si256((__m256i *)to + i, w->bits == 4 ? pair_of(quants, i / 2, i % 2, 4) : pair_of(quants, i / 2, i % 2, 8));
    }
}

/* A panel times `count` tokens; `bits` is a constant, and 16 for what was unpacked. */
INLINE void multiply_pairs(const Matrix *w, int panel, const void *weights, const Activations *x, int first,
                           const int count, const int bits, float (*out)[LANES]) {
    int groups = w->cols / GROUP;
    const size_t size = LANES * GROUP / 8 * bits;
    const char *group = weights;
    const uint16_t *scales = w->scales + (size_t)panel * groups * 2 * LANES;
    const int16_t *words = x->words + (size_t)first * w->cols;
    const float *xscales = x->scales + scale_place(first, 0, groups);
    const float *xsums = x->sums + scale_place(first, 0, groups);
    __m256 total[2 * COUNT];
    UNROLL for (int i = 0; i < 2 * count; i++)
        total[i] = w->bias ? _mm256_loadu_ps(w->bias + panel * LANES + i % 2 * 8) : _mm256_setzero_ps();
    for (int g = 0; g < groups; g++, group += size, scales += 2 * LANES, words += GROUP) {
        if (bits != 16) {
            for (size_t line = 0; line < size; line += 64) __builtin_prefetch(group + AHEAD + line);
            __builtin_prefetch(scales + AHEAD / (8 * bits) * 2);
        }
        __m256i sums[2 * COUNT];
        UNROLL for (int i = 0; i < 2 * count; i++) sums[i] = _mm256_setzero_si256();
        UNROLL for (int pair = 0; pair < 16; pair++) {
            __m256i low = pair_of(group, pair, 0, bits), high = pair_of(group, pair, 1, bits);
            __asm__("" : "+x"(low), "+x"(high)); /* loaded once, not for every token */
            UNROLL for (int t = 0; t < count; t++) {
                __m256i a = _mm256_set1_epi32(*(const word *)(words + (size_t)t * w->cols + 2 * pair));
                sums[2 * t] = add_pairs(sums[2 * t], low, a);
                sums[2 * t + 1] = add_pairs(sums[2 * t + 1], high, a);
            }
        }
        UNROLL for (int half = 0; half < 2; half++) {
            __m256 scale = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(scales + 8 * half)));
            __m256 minimum = w->bits == 4 ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(scales + LANES + 8 * half)))
                                          : _mm256_mul_ps(scale, _mm256_set1_ps(-128.0f));
            UNROLL for (int t = 0; t < count; t++) {
                __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(xscales[g * TILE + t])), *sum = &total[2 * t + half];
                *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[2 * t + half]), factor, *sum);
                *sum = _mm256_fmadd_ps(minimum, _mm256_set1_ps(xsums[g * TILE + t]), *sum);
            }
        }
    }
    UNROLL for (int i = 0; i < 2 * count; i++) _mm256_storeu_ps(out[i / 2] + i % 2 * 8, total[i]);
}

#define MULTIPLY_PAIRS(bits)                                                            \
    switch (count - t) {                                                                \
    case 1: multiply_pairs(w, panel, weights, x, first + t, 1, bits, out + t); break;   \
    case 2: multiply_pairs(w, panel, weights, x, first + t, 2, bits, out + t); break;   \
    case 3: multiply_pairs(w, panel, weights, x, first + t, 3, bits, out + t); break;   \
    default: multiply_pairs(w, panel, weights, x, first + t, COUNT, bits, out + t);     \
    }

/* One panel times `count` tokens; `unpacked` is null where weights are as they are packed. */
static void multiply_words(const Matrix *w, int panel, const int16_t *unpacked, const Activations *x, int first,
                           int count, float (*out)[LANES]) {
    size_t place = (size_t)panel * (w->cols / GROUP);
    const void *weights = unpacked ? (const void *)unpacked : w->quants + place * LANES * GROUP * w->bits / 8;
    for (int t = 0; t < count; t += COUNT) {
        if (unpacked) MULTIPLY_PAIRS(16)
        else if (w->bits == 4) MULTIPLY_PAIRS(4)
        else MULTIPLY_PAIRS(8)
    }
}
#endif
