/* Products through the processor's matrix tiles, in bfloat16 with sums in float32.
 *
 * Panels are unpacked to bfloat16 before they are multiplied, with 16 or 32 tokens at once. A token is a
 * row of a tile and its sums run over the columns in their order, so its product does not depend on
 * the tokens beside it.
 */
#pragma once
#include "meanwhile.h"

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

/* `panels` (1 or 2, a constant as `tiles` is) times 16 or 32 tokens, added to the tiles. */
INLINE void add_tiles(const Bfloat *weights, const Bfloat *x, int groups, Meanwhile *meanwhile, const int panels,
                      const int tiles) {
    const size_t size = LANES * GROUP, apart = size * groups;
    for (int g = 0; g < groups; g++, weights += size, x += size) {
        work_meanwhile(meanwhile);
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

/* The same to out[token][stride]. */
INLINE void multiply_tiles(const Bfloat *weights, const Bfloat *x, int groups, Meanwhile *meanwhile, const int panels,
                           const int tiles, float *out, int stride) {
    _tile_zero(0);
    if (panels == 2) _tile_zero(1);
    if (tiles == 2) _tile_zero(2);
    if (tiles == 2 && panels == 2) _tile_zero(3);
    add_tiles(weights, x, groups, meanwhile, panels, tiles);
    float *low = out + TILE * stride;
    _tile_stored(0, out, stride * 4);
    if (panels == 2) _tile_stored(1, out + LANES, stride * 4);
    if (tiles == 2) _tile_stored(2, low, stride * 4);
    if (tiles == 2 && panels == 2) _tile_stored(3, low + LANES, stride * 4);
}

static void multiply_bfloats(const Matrix *w, int panel, int panels, const Bfloat *weights, const Activations *x,
                             int first, int count, Meanwhile *meanwhile, float *out, int stride) {
    int groups = w->cols / GROUP;
    const Bfloat *rows = x->bfloats + (size_t)first * w->cols;
    for (int done = 0; done < panels; done += 2, weights += (size_t)2 * LANES * w->cols) {
        float *to = out + done * LANES;
        if (panels - done > 1 && count > TILE) multiply_tiles(weights, rows, groups, meanwhile, 2, 2, to, stride);
        else if (panels - done > 1) multiply_tiles(weights, rows, groups, meanwhile, 2, 1, to, stride);
        else if (count > TILE) multiply_tiles(weights, rows, groups, meanwhile, 1, 2, to, stride);
        else multiply_tiles(weights, rows, groups, meanwhile, 1, 1, to, stride);
    }
    if (!w->bias) return;
    const float *bias = w->bias + panel * LANES;
    for (int t = 0; t < count; t++, out += stride)
        for (int i = 0; i < panels * LANES; i += LANES) store(out + i, load(out + i) + load(bias + i));
}

/* 2 panels times up to 32 tokens, added to columns of `hidden` [tokens][rows of w], where there is
 * memory behind them for 32. */
static void add_bfloats(const Matrix *w, int panel, const Bfloat *weights, const Activations *x, int first, int count,
                        Meanwhile *meanwhile, float *hidden) {
    int groups = w->cols / GROUP, stride = w->rows * 4;
    const Bfloat *rows = x->bfloats + (size_t)first * w->cols;
    float *low = hidden + (size_t)first * w->rows + panel * LANES, *high = low + TILE * w->rows;
    _tile_loadd(0, low, stride);
    _tile_loadd(1, low + LANES, stride);
    if (count > TILE) {
        _tile_loadd(2, high, stride);
        _tile_loadd(3, high + LANES, stride);
        add_tiles(weights, rows, groups, meanwhile, 2, 2);
        _tile_stored(2, high, stride);
        _tile_stored(3, high + LANES, stride);
    } else {
        add_tiles(weights, rows, groups, meanwhile, 2, 1);
    }
    _tile_stored(0, low, stride);
    _tile_stored(1, low + LANES, stride);
    if (!w->bias) return;
    for (int t = 0; t < count; t++, low += w->rows)
        for (int i = 0; i < 2 * LANES; i += LANES) store(low + i, load(low + i) + load(w->bias + panel * LANES + i));
}
#endif
