/* Weights and activations in bfloat16, as the processor's matrix tiles take them. */
#pragma once
#include "model.h"

#ifdef HAS_AMX
/* Weights are unpacked two columns of 16 rows at a time, as pairs of 16 bits. A pair is what lies in
 * the same place of the two halves of a packed word, which is not two neighbours: activations are put
 * in the same order. */
INLINE __m512i in_order_of_pairs(__m512i group) {
    uint16_t order[GROUP];
    UNROLL for (int row = 0; row < LANES; row++) {
        int first = row / 4 * 4 + row % 2 * LANES + row % 4 / 2;
        order[2 * row] = (uint16_t)first;
        order[2 * row + 1] = (uint16_t)(first + 2);
    }
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(order), group);
}

/* Float16 is unpacked and scaled in its own arithmetic, and its exponent then stands in bfloat16's
 * place as it is: 2^112 too small, of which weights take 2^8 back and activations the rest. Where that
 * makes a denormal number, which is below 2^-22, tiles take it for zero. */
#define WEIGHT_FACTOR 0x1p8f
#define TILE_FACTOR 0x1p104f /* of activations */

/* 32 activations as a tile takes them. */
INLINE void keep_tile_row(const float *values, Bfloat *to) {
    floats low = load(values) * TILE_FACTOR, high = load(values + LANES) * TILE_FACTOR;
    _mm512_storeu_si512(to, in_order_of_pairs((__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low)));
}

/* Float16 without its lowest three bits, which are rounded away, and its sign in each place that they
 * leave; then as it stands in bfloat16's place: sign and magnitude. */
INLINE __m512i rounded(__m512i halves) { return _mm512_mulhrs_epi16(halves, _mm512_set1_epi16(1 << 12)); }

INLINE __m512i in_place(__m512i rounded) { return _mm512_and_si512(rounded, _mm512_set1_epi16((short)0x8fff)); }

#ifdef __AVX512FP16__
/* A number for each of 16 rows, twice. */
INLINE __m512h twice(const uint16_t *rows) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)rows));
    __m512h both = (__m512h)_mm512_or_si512(wide, _mm512_slli_epi32(wide, 16));
    return _mm512_mul_ph(both, _mm512_set1_ph(WEIGHT_FACTOR));
}

INLINE void keep_pairs(__m512h values, Bfloat *to) { _mm512_storeu_si512(to, in_place(rounded((__m512i)values))); }

/* A group of weights: [column pair][16 rows][2]. */
INLINE void unpack_group_4(const uint8_t *quants, const uint16_t *scales, Bfloat *to) {
    const _Float16 levels[GROUP] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                                    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    __m512i table = _mm512_loadu_si512(levels);
    __m512h scale = twice(scales), minimum = twice(scales + LANES);
    UNROLL for (int j = 0; j < 4; j++) {
        __m512i packed = _mm512_loadu_si512(quants + 64 * j);
        UNROLL for (int i = 0; i < 4; i++, to += GROUP) { /* the processor looks at the low 5 bits alone */
            __m512h level = (__m512h)_mm512_permutexvar_epi16(_mm512_srli_epi16(packed, 4 * i), table);
            keep_pairs(_mm512_fmadd_ph(level, scale, minimum), to);
        }
    }
}

/* 1024 + quant is a float16 whose low bits are the quant. */
INLINE __m512h times(__m512i quants, __m512h scale) {
    const __m512i bytes_of_16 = _mm512_set1_epi16(255), thousand = _mm512_set1_epi16(0x6400);
    __m512h level = (__m512h)_mm512_or_si512(_mm512_and_si512(quants, bytes_of_16), thousand);
    return _mm512_mul_ph(_mm512_sub_ph(level, _mm512_set1_ph(1024 + 128)), scale);
}

INLINE void unpack_group_8(const uint8_t *quants, const uint16_t *scales, Bfloat *to) {
    __m512h scale = twice(scales);
    UNROLL for (int j = 0; j < 8; j++) {
        __m512i packed = _mm512_loadu_si512(quants + 64 * j);
        Bfloat *pairs = to + (j % 4 * 4 + j / 4) * GROUP;
        keep_pairs(times(packed, scale), pairs);
        keep_pairs(times(_mm512_srli_epi16(packed, 8), scale), pairs + 2 * GROUP);
    }
}
#else
/* The same where the compiler does not know such arithmetic.
 *
 * Two columns of 16 rows as pairs of bfloat16, rounded to the nearest: in integers, which is three times
 * as fast as the processor's own conversion. */
INLINE ints pairs_of(floats first, floats second) {
    uints low = ((uints)first + 0x8000) >> 16, high = ((uints)second + 0x8000) & 0xffff0000;
    return (ints)(low | high);
}

INLINE floats column_of(ints packed, int shift, int mask, floats scale, floats minimum) {
    return __builtin_convertvector(packed >> shift & mask, floats) * scale + minimum;
}

INLINE void unpack_group_4(const uint8_t *quants, const uint16_t *scales, Bfloat *to) {
    floats scale = halves_to_floats(scales) / TILE_FACTOR, minimum = halves_to_floats(scales + LANES) / TILE_FACTOR;
    UNROLL for (int j = 0; j < 4; j++) {
        ints packed = *(const ints *)(quants + 64 * j);
        UNROLL for (int i = 0; i < 4; i++, to += GROUP)
            *(ints *)to = pairs_of(column_of(packed, 4 * i, 15, scale, minimum), column_of(packed, 4 * i + 16, 15, scale, minimum));
    }
}

INLINE void unpack_group_8(const uint8_t *quants, const uint16_t *scales, Bfloat *to) {
    floats scale = halves_to_floats(scales) / TILE_FACTOR, minimum = scale * -128.0f;
    UNROLL for (int j = 0; j < 8; j++) {
        ints packed = *(const ints *)(quants + 64 * j);
        UNROLL for (int i = 0; i < 2; i++)
            *(ints *)(to + (j % 4 * 4 + j / 4 + 2 * i) * GROUP) =
                pairs_of(column_of(packed, 8 * i, 255, scale, minimum), column_of(packed, 8 * i + 16, 255, scale, minimum));
    }
}
#endif

#define GROUPS_AHEAD 8 /* groups asked for before they are wanted: the processor looks no further than a page */

/* Group `g` of the matrix. */
INLINE void unpack_bfloats(const Matrix *w, size_t g, Bfloat *to) {
    const uint8_t *quants = w->quants + (g + GROUPS_AHEAD) * (LANES * GROUP / 8) * w->bits;
    for (int line = 0; line < w->bits; line++) __builtin_prefetch(quants + 64 * line);
    __builtin_prefetch(w->scales + (g + GROUPS_AHEAD) * 2 * LANES);
    if (w->bits == 4) unpack_group_4(w->quants + g * (LANES * GROUP / 2), w->scales + g * 2 * LANES, to);
    else unpack_group_8(w->quants + g * (LANES * GROUP), w->scales + g * 2 * LANES, to);
}
#endif
