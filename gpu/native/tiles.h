/* Products through the processor's matrix tiles, in bfloat16 with sums in float32.
 *
 * Panels are unpacked to bfloat16 first, then multiplied with 16 or 32 tokens at once. A token is a
 * row of a tile and its sums run over the columns in their order, so its product does not depend on
 * the tokens beside it.
 */
#pragma once
#include "model.h"

#ifdef HAS_AMX
typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t widths[16]; /* bytes */
    uint8_t heights[16];
} __attribute__((packed)) TileShapes;

/* Once per thread: eight tiles of 16 rows of 64 bytes. */
static void shape_tiles(void) {
    TileShapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) shapes.widths[i] = 64, shapes.heights[i] = 16;
    _tile_loadconfig(&shapes);
}

/* The system must be asked before a process uses tiles. */
static int may_use_tiles(void) {
    const int request = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, request, tile_data) == 0;
}

/* Two columns of 16 rows as pairs of bfloat16, rounded to the nearest: the form in which a tile takes
 * weights. In integers, which is three times as fast as the processor's own conversion. */
INLINE ints pairs_of(floats first, floats second) {
    uints low = ((uints)first + 0x8000) >> 16, high = ((uints)second + 0x8000) & 0xffff0000;
    return (ints)(low | high);
}

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

#ifdef __AVX512FP16__
/* A number for each of 16 rows, twice. */
INLINE __m512h twice(const uint16_t *rows) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)rows));
    __m512h both = (__m512h)_mm512_or_si512(wide, _mm512_slli_epi32(wide, 16));
    return _mm512_mul_ph(both, _mm512_set1_ph(WEIGHT_FACTOR));
}

/* Sign and magnitude, whose lowest three bits are rounded away. */
INLINE void keep_pairs(__m512h values, Bfloat *to) {
    __m512i rounded = _mm512_mulhrs_epi16((__m512i)values, _mm512_set1_epi16(1 << 12));
    _mm512_storeu_si512(to, _mm512_and_si512(rounded, _mm512_set1_epi16((short)0x8fff)));
}

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
/* The same where the compiler does not know such arithmetic. */
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

/* Panels from `first` on in bfloat16. All of them before any is multiplied: loading a tile waits for
 * the stores before it. */
static void unpack_panels(const Matrix *w, int first, int count, Bfloat *to) {
    int groups = w->cols / GROUP;
    size_t place = (size_t)first * groups, size = LANES * GROUP * w->bits / 8;
    for (size_t g = place; g < place + (size_t)count * groups; g++, to += LANES * GROUP) {
        if (w->bits == 4) unpack_group_4(w->quants + g * size, w->scales + g * 2 * LANES, to);
        else unpack_group_8(w->quants + g * size, w->scales + g * 2 * LANES, to);
    }
}

/* What of a packed matrix is wanted later: asked for while tiles are multiplied, which leaves the
 * memory idle. */
typedef struct {
    const uint8_t *quants;
    const uint16_t *scales;
    int groups, bits;
} Coming;

#define PIECE 4 /* panels from what one member multiplies to what it unpacks next */

/* Nothing where the tokens before `first` have had it asked for. */
INLINE Coming coming_after(const Matrix *w, int panel, int first) {
    if (first % BLOCK) return (Coming){0};
    size_t groups = w->cols / GROUP, place = (size_t)(panel + PIECE) * groups;
    return (Coming){w->quants + place * LANES * GROUP * w->bits / 8, w->scales + place * 2 * LANES, groups, w->bits};
}

/* Group `g` of so many panels. */
INLINE void ask_for(Coming c, int g, const int panels) {
    UNROLL for (int p = 0; p < panels; p++) {
        size_t place = (size_t)p * c.groups + g;
        for (int line = 0; line < c.bits; line++)
            __builtin_prefetch(c.quants + (place * c.bits + line) * 64, 0, 2);
        __builtin_prefetch(c.scales + place * 2 * LANES, 0, 2);
    }
}

/* `panels` (1 or 2, a constant as `tiles` is) times 16 or 32 tokens, added to the tiles. */
INLINE void add_tiles(const Bfloat *weights, const Bfloat *x, int groups, Coming coming, const int panels,
                      const int tiles) {
    const size_t size = LANES * GROUP, apart = size * groups;
    for (int g = 0; g < groups; g++, weights += size, x += size) {
        if (coming.quants) ask_for(coming, g, panels);
        _tile_loadd(4, x, 64);
        _tile_loadd(6, weights, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (panels == 2) {
            _tile_loadd(7, weights + apart, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (tiles == 2) {
            _tile_loadd(5, x + apart, 64);
            _tile_dpbf16ps(2, 5, 6);
            if (panels == 2) _tile_dpbf16ps(3, 5, 7);
        }
    }
}

/* The same to out[panel][token], for so many tokens. */
INLINE void multiply_tiles(const Bfloat *weights, const Bfloat *x, int groups, Coming coming, const int panels,
                           const int tiles, float (*out)[BATCH][LANES]) {
    _tile_zero(0);
    if (panels == 2) _tile_zero(1);
    if (tiles == 2) _tile_zero(2);
    if (tiles == 2 && panels == 2) _tile_zero(3);
    add_tiles(weights, x, groups, coming, panels, tiles);
    _tile_stored(0, out[0][0], 64);
    if (panels == 2) _tile_stored(1, out[1][0], 64);
    if (tiles == 2) _tile_stored(2, out[0][TILE], 64);
    if (tiles == 2 && panels == 2) _tile_stored(3, out[1][TILE], 64);
}

static void multiply_bfloats(const Matrix *w, int panel, const Bfloat *weights, const Activations *x, int first,
                             int panels, int count, float (*out)[BATCH][LANES]) {
    int groups = w->cols / GROUP;
    Coming coming = coming_after(w, panel, first);
    const Bfloat *rows = x->bfloats + (size_t)first * w->cols;
    if (panels == 2 && count > TILE) multiply_tiles(weights, rows, groups, coming, 2, 2, out);
    else if (panels == 2) multiply_tiles(weights, rows, groups, coming, 2, 1, out);
    else if (count > TILE) multiply_tiles(weights, rows, groups, coming, 1, 2, out);
    else multiply_tiles(weights, rows, groups, coming, 1, 1, out);
    if (!w->bias) return;
    for (int p = 0; p < panels; p++) {
        floats bias = load(w->bias + (panel + p) * LANES);
        for (int t = 0; t < count; t++) store(out[p][t], load(out[p][t]) + bias);
    }
}

/* 2 panels times up to 32 tokens, added to columns of `hidden` [tokens][rows of w], where there is
 * memory behind them for 32. */
static void add_bfloats(const Matrix *w, int panel, const Bfloat *weights, const Activations *x, int first, int count,
                        float *hidden) {
    int groups = w->cols / GROUP, stride = w->rows * 4;
    Coming coming = coming_after(w, panel, first);
    const Bfloat *rows = x->bfloats + (size_t)first * w->cols;
    float *low = hidden + (size_t)first * w->rows + panel * LANES, *high = low + TILE * w->rows;
    _tile_loadd(0, low, stride);
    _tile_loadd(1, low + LANES, stride);
    if (count > TILE) {
        _tile_loadd(2, high, stride);
        _tile_loadd(3, high + LANES, stride);
        add_tiles(weights, rows, groups, coming, 2, 2);
        _tile_stored(2, high, stride);
        _tile_stored(3, high + LANES, stride);
    } else {
        add_tiles(weights, rows, groups, coming, 2, 1);
    }
    _tile_stored(0, low, stride);
    _tile_stored(1, low + LANES, stride);
    if (!w->bias) return;
    for (int t = 0; t < count; t++, low += w->rows)
        for (int i = 0; i < 2 * LANES; i += LANES) store(low + i, load(low + i) + load(w->bias + panel * LANES + i));
}
#endif
