/* Products of packed weights with activations.
 *
 * Sums of a group are exact integers, and tokens never meet in a sum, so a token's product does not
 * depend on what else is in the batch, nor on which of the functions here computed it.
 */
#pragma once
#include "model.h"

#define ROWS 8 /* tokens that are multiplied at once without matrix tiles */
#define FEW 4  /* tokens for which tiles do not pay */

/* Where the scale of a group of a token lies. */
INLINE size_t scale_place(int t, int g, int groups) {
    return ((size_t)(t / TILE) * groups + g) * TILE + t % TILE;
}

/* Quantise 32 values to be multiplied with weights of so many bits; group `g` of token `t`. */
INLINE void quantise_group(const float *x, Activations *to, int t, int g, int weight_bits) {
    const int shift = weight_bits == 4 ? 4 : 7;
    floats part[2] = {load(x), load(x + LANES)};
    float most = largest_of(larger(larger(part[0], -part[0]), larger(part[1], -part[1])));
    float levels = (float)(127 << shift);
    float scale = most / levels, inverse = most > 0 ? levels / most : 0.0f;
    int groups = to->cols / GROUP, half = 1 << (shift - 1);
    int8_t *q = to->quants + ((size_t)t * groups + g) * 2 * GROUP;
    ints sum = {0};
    UNROLL for (int i = 0; i < 2; i++) {
        floats scaled = part[i] * inverse;
        ints sign = (ints)scaled & (int32_t)0x80000000;
        ints value = __builtin_convertvector(scaled + (floats)(sign | (ints)splat(0.5f)), ints);
        ints high = (value + half) >> shift;
        *(bytes *)(q + i * LANES) = __builtin_convertvector(high, bytes);
        *(bytes *)(q + GROUP + i * LANES) = __builtin_convertvector(value - (high << shift), bytes);
        sum += value;
    }
    size_t place = scale_place(t, g, groups);
    to->scales[place] = scale;
    to->sums[place] = scale * (float)sum_of_ints(sum);
}

/* The integer product of 16 rows with 4 columns of one token, added to `sum`. */
INLINE ints dot4(ints sum, ints weights, int32_t activations) {
#ifdef HAS_VNNI
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32(activations));
#else
    for (int i = 0; i < 4; i++)
        sum += ((weights >> (8 * i)) & 255) * (int32_t)(int8_t)(activations >> (8 * i));
    return sum;
#endif
}

/* One panel times `count` tokens from `first` on: out[t][16]. `bits` and `count` are constants. */
INLINE void multiply_tile(const Matrix *w, int panel, const Activations *x, int first, const int count,
                          const int bits, float (*out)[LANES]) {
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
    UNROLL for (int t = 0; t < count; t++) store(out[t], total[t] + bias);
}

#ifdef HAS_AMX
#define HIGH 0
#define LOW 1
#define WEIGHTS 2
#define WEIGHTS_16 3 /* 16 times the weights */
#define SUMS 4
#define HIGH_SUMS 5

typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t widths[16]; /* bytes */
    uint8_t heights[16];
} __attribute__((packed)) TileShapes;

/* Once per thread: 16 tokens by 32 columns, 32 columns by 16 rows, 16 tokens by 16 rows. */
static void shape_tiles(void) {
    TileShapes shapes = {.palette = 1,
                         .widths = {32, 32, 64, 64, 64, 64},
                         .heights = {16, 16, 8, 8, 16, 16}};
    _tile_loadconfig(&shapes);
}

/* The system must be asked before a process uses tiles. */
static int may_use_tiles(void) {
    const int request = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, request, tile_data) == 0;
}

typedef int32_t TileSums[TILE][LANES] __attribute__((aligned(64)));

INLINE void unpack_group(const uint8_t *quants, Unpacked *to) {
    UNROLL for (int j = 0; j < 4; j++) {
        ints packed = *(const ints *)(quants + 64 * j);
        ints low = packed & 0x0f0f0f0f, upper = packed & (int32_t)0xf0f0f0f0;
        *(ints *)(to->weights + 64 * j) = low;
        *(ints *)(to->weights + 64 * (j + 4)) = (upper >> 4) & 0x0f0f0f0f;
        *(ints *)(to->weights_16 + 64 * j) = low << 4;
        *(ints *)(to->weights_16 + 64 * (j + 4)) = upper;
    }
}

/* The integer sums of one group of 4-bit weights, for 16 tokens. */
INLINE void sum_group_4(const Unpacked *weights, const int8_t *xq, int stride, TileSums sums) {
    _tile_loadd(WEIGHTS, weights->weights, 64);
    _tile_loadd(WEIGHTS_16, weights->weights_16, 64);
    _tile_loadd(HIGH, xq, stride);
    _tile_loadd(LOW, xq + GROUP, stride);
    _tile_zero(SUMS);
    _tile_dpbsud(SUMS, LOW, WEIGHTS);
    _tile_dpbsud(SUMS, HIGH, WEIGHTS_16);
    _tile_stored(SUMS, sums, 64);
}

/* The same of 8-bit weights, each plane by itself. */
INLINE void sum_group_8(const uint8_t *quants, const int8_t *xq, int stride, TileSums high, TileSums low) {
    _tile_loadd(WEIGHTS, quants, 64);
    _tile_loadd(HIGH, xq, stride);
    _tile_loadd(LOW, xq + GROUP, stride);
    _tile_zero(HIGH_SUMS);
    _tile_zero(SUMS);
    _tile_dpbsud(HIGH_SUMS, HIGH, WEIGHTS);
    _tile_dpbsud(SUMS, LOW, WEIGHTS);
    _tile_stored(HIGH_SUMS, high, 64);
    _tile_stored(SUMS, low, 64);
}

/* The same as multiply_tile for 16 tokens, bit for bit: the integer sums are exact. A group's sums
 * are scaled while the next group is multiplied, for a tile's store takes its time. */
INLINE void multiply_tiles(const Matrix *w, int panel, const Unpacked *unpacked, const Activations *x, int first,
                           const int bits, float (*out)[LANES]) {
    int groups = w->cols / GROUP, stride = groups * 2 * GROUP;
    const size_t size = LANES * GROUP * bits / 8;
    size_t place = (size_t)panel * groups;
    const uint8_t *quants = w->quants + place * size;
    const uint16_t *scales = w->scales + place * 2 * LANES;
    const int8_t *xq = x->quants + (size_t)first * stride;
    const float *xscales = x->scales + scale_place(first, 0, groups);
    const float *xsums = x->sums + scale_place(first, 0, groups);
    TileSums sums[2], high[2];
    floats total[TILE];
    UNROLL for (int t = 0; t < TILE; t++) total[t] = splat(0);
    for (int next = 0; next <= groups; next++) {
        const int8_t *group = xq + next * 2 * GROUP;
        if (next < groups && bits == 4) sum_group_4(unpacked + next, group, stride, sums[next & 1]);
        if (next < groups && bits == 8)
            sum_group_8(quants + next * size, group, stride, high[next & 1], sums[next & 1]);
        int g = next - 1;
        if (g < 0) continue;
        floats scale = halves_to_floats(scales), minimum = scale * -128.0f;
        if (bits == 4) minimum = halves_to_floats(scales + LANES);
        const int32_t(*h)[LANES] = high[g & 1], (*l)[LANES] = sums[g & 1];
        UNROLL for (int t = 0; t < TILE; t++) {
            ints sum = *(const ints *)l[t];
            if (bits == 8) sum += *(const ints *)h[t] << 7;
            total[t] += __builtin_convertvector(sum, floats) * (scale * xscales[g * TILE + t]);
            total[t] += minimum * xsums[g * TILE + t];
        }
        scales += 2 * LANES;
    }
    floats bias = w->bias ? load(w->bias + panel * LANES) : splat(0);
    UNROLL for (int t = 0; t < TILE; t++) store(out[t], total[t] + bias);
}
#endif

/* 4-bit panels from `first` on, made ready for tiles; null where they are not needed. All of them
 * before any is multiplied: loading a tile waits for the stores before it. */
static const Unpacked *unpack_panels(const Matrix *w, int first, int count, const Activations *x, int tokens,
                                     Unpacked *memory) {
#ifdef HAS_AMX
    if (x->uses_tiles && w->bits == 4 && tokens > FEW) {
        size_t groups = (size_t)(w->cols / GROUP);
        const uint8_t *quants = w->quants + first * groups * (LANES * GROUP / 2);
        for (size_t i = 0; i < count * groups; i++) unpack_group(quants + i * (LANES * GROUP / 2), memory + i);
        return memory;
    }
#endif
    (void)w, (void)first, (void)count, (void)x, (void)tokens, (void)memory;
    return NULL;
}

#define CASES(bits)                                                                     \
    switch (count < ROWS ? count : ROWS) {                                              \
    case 1: multiply_tile(w, panel, x, first, 1, bits, out); break;                     \
    case 2: multiply_tile(w, panel, x, first, 2, bits, out); break;                     \
    case 3: multiply_tile(w, panel, x, first, 3, bits, out); break;                     \
    case 4: multiply_tile(w, panel, x, first, 4, bits, out); break;                     \
    case 5: multiply_tile(w, panel, x, first, 5, bits, out); break;                     \
    case 6: multiply_tile(w, panel, x, first, 6, bits, out); break;                     \
    case 7: multiply_tile(w, panel, x, first, 7, bits, out); break;                     \
    default: multiply_tile(w, panel, x, first, 8, bits, out); break;                    \
    }

#ifndef HAS_VNNI
#undef CASES
#define CASES(bits) multiply_tile(w, panel, x, first, count < ROWS ? count : ROWS, bits, out);
#endif

/* One panel times up to 16 tokens; there is memory behind them for 16. `unpacked` is the panel as
 * unpack_panels made it. */
static void multiply(const Matrix *w, int panel, const Unpacked *unpacked, const Activations *x, int first,
                     int count, float (*out)[LANES]) {
#ifdef HAS_AMX
    if (unpacked) {
        multiply_tiles(w, panel, unpacked, x, first, 4, out);
        return;
    }
    if (x->uses_tiles && w->bits == 8 && count > FEW) {
        multiply_tiles(w, panel, NULL, x, first, 8, out);
        return;
    }
#else
    (void)unpacked;
#endif
    for (; count > 0; first += ROWS, out += ROWS, count -= ROWS) {
        if (w->bits == 4) CASES(4) else CASES(8)
    }
}

INLINE const Unpacked *panel_of(const Unpacked *unpacked, int panel, int groups) {
    return unpacked ? unpacked + (size_t)panel * groups : NULL;
}

INLINE int tile_size(int first, int total) { return total - first < TILE ? total - first : TILE; }
