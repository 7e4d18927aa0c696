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

/* One column of 4-bit weights: the processor looks at the low 4 bits of each lane alone. */
INLINE floats column_4(ints packed, int shift, floats scale, floats minimum) {
    const floats levels = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return (floats)_mm512_permutexvar_ps((__m512i)(packed >> shift), (__m512)levels) * scale + minimum;
}

INLINE floats column_8(ints packed, int shift, floats scale, floats minimum) {
    return __builtin_convertvector((packed >> shift) & 255, floats) * scale + minimum;
}

/* A group of weights in bfloat16: [column pair][16 rows][2]. */
INLINE void unpack_group(const uint8_t *quants, const uint16_t *scales, const int bits, Bfloat *to) {
    floats scale = halves_to_floats(scales), minimum = scale * -128.0f;
    if (bits == 4) minimum = halves_to_floats(scales + LANES);
    UNROLL for (int j = 0; j < bits; j++) {
        ints packed = *(const ints *)(quants + 64 * j);
        UNROLL for (int i = 0; i < 4; i += 2) {
            Bfloat *pair = to + (2 * j + i / 2) * 2 * LANES;
            if (bits == 8) {
                *(ints *)pair = pairs_of(column_8(packed, 8 * i, scale, minimum), column_8(packed, 8 * i + 8, scale, minimum));
                continue;
            }
            *(ints *)pair = pairs_of(column_4(packed, 8 * i, scale, minimum), column_4(packed, 8 * i + 8, scale, minimum));
            *(ints *)(pair + 8 * 2 * LANES) =
                pairs_of(column_4(packed, 8 * i + 4, scale, minimum), column_4(packed, 8 * i + 12, scale, minimum));
        }
    }
}

/* Panels from `first` on in bfloat16. All of them before any is multiplied: loading a tile waits for
 * the stores before it. */
static void unpack_panels(const Matrix *w, int first, int count, Bfloat *to) {
    int groups = w->cols / GROUP;
    size_t place = (size_t)first * groups, size = LANES * GROUP * w->bits / 8;
    for (size_t g = place; g < place + (size_t)count * groups; g++, to += LANES * GROUP) {
        if (w->bits == 4) unpack_group(w->quants + g * size, w->scales + g * 2 * LANES, 4, to);
        else unpack_group(w->quants + g * size, w->scales + g * 2 * LANES, 8, to);
    }
}

/* `panels` (1 or 2, a constant as `tiles` is) times 16 or 32 tokens. */
INLINE void multiply_tiles(const Bfloat *weights, const Bfloat *x, int groups, const int panels, const int tiles,
                           float (*out)[BATCH][LANES]) {
    const size_t size = LANES * GROUP, apart = size * groups;
    _tile_zero(0);
    if (panels == 2) _tile_zero(1);
    if (tiles == 2) _tile_zero(2);
    if (tiles == 2 && panels == 2) _tile_zero(3);
    for (int g = 0; g < groups; g++, weights += size, x += size) {
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
    _tile_stored(0, out[0][0], 64);
    if (panels == 2) _tile_stored(1, out[1][0], 64);
    if (tiles == 2) _tile_stored(2, out[0][TILE], 64);
    if (tiles == 2 && panels == 2) _tile_stored(3, out[1][TILE], 64);
}

static void multiply_bfloats(const Matrix *w, int panel, const Bfloat *weights, const Activations *x, int first,
                             int panels, int count, float (*out)[BATCH][LANES]) {
    int groups = w->cols / GROUP;
    const Bfloat *rows = x->bfloats + (size_t)first * w->cols;
    if (panels == 2 && count > TILE) multiply_tiles(weights, rows, groups, 2, 2, out);
    else if (panels == 2) multiply_tiles(weights, rows, groups, 2, 1, out);
    else if (count > TILE) multiply_tiles(weights, rows, groups, 1, 2, out);
    else multiply_tiles(weights, rows, groups, 1, 1, out);
    if (!w->bias) return;
    for (int p = 0; p < panels; p++) {
        floats bias = load(w->bias + (panel + p) * LANES);
        for (int t = 0; t < count; t++) store(out[p][t], load(out[p][t]) + bias);
    }
}
#endif
