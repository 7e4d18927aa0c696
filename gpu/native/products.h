/* Products of packed weights with activations, in the form that pays for the number of tokens. */
#pragma once
#include "planes.h"
#include "tiles.h"
#include "words.h"

/* How activations are kept for a matrix: in words, unless the processor multiplies bytes in groups of
 * four; then in bfloat16 where many tokens make that pay, else in planes for weights of so many bits. */
INLINE Form form_for(const Matrix *w, const Activations *x, int tokens) {
#ifdef HAS_VNNI
    if (x->most_planes >= 0 && tokens > x->most_planes) return TILES;
    return w->bits == 4 ? PLANES_4 : PLANES_8;
#else
    (void)w, (void)x;
    return tokens > COUNT ? UNPACKED_WORDS : WORDS;
#endif
}

/* Keep 32 values in a form; group `g` of token `t`. */
INLINE void keep_group(const float *values, Activations *to, int t, int g, Form form) {
#ifdef HAS_AMX
    if (form == TILES) {
        size_t groups = (size_t)to->cols / GROUP;
        keep_tile_row(values, to->bfloats + ((t / TILE * groups + g) * TILE + t % TILE) * GROUP);
        return;
    }
#endif
#ifdef HAS_VNNI
    quantise_group(values, to, t, g, form == PLANES_4 ? 4 : 8);
#else
    (void)form;
    keep_words(values, to, t, g);
#endif
}

/* Panels from `first` on, unpacked into `memory` where the form asks for it. */
static const Unpacked *prepare(const Matrix *w, int first, int count, Form form, Unpacked *memory) {
#ifdef HAS_AMX
    if (form == TILES) unpack_panels(w, first, count, memory);
#endif
#ifndef HAS_VNNI
    if (form == UNPACKED_WORDS) unpack_words(w, first, count, memory);
#endif
    (void)w, (void)first, (void)count, (void)form;
    return memory;
}

/* The `panel`th of what was prepared. */
INLINE const Unpacked *unpacked_panel(const Unpacked *ready, int panel, const Matrix *w) {
    return ready + (size_t)panel * LANES * w->cols;
}

/* One or two panels times up to 32 tokens; there is memory behind them for 32. `ready` is where
 * `prepare` put the first of them. */
static void multiply(const Matrix *w, int panel, int panels, const Unpacked *ready, const Activations *x, int first,
                     int count, Form form, float (*out)[BATCH][LANES]) {
#ifdef HAS_AMX
    if (form == TILES) {
        multiply_bfloats(w, panel, ready, x, first, panels, count, out);
        return;
    }
#endif
    (void)ready, (void)form;
    for (int p = 0; p < panels; p++) {
#ifdef HAS_VNNI
        multiply_planes(w, panel + p, x, first, count, out[p]);
#else
        const Unpacked *unpacked = form == UNPACKED_WORDS ? unpacked_panel(ready, p, w) : NULL;
        multiply_words(w, panel + p, unpacked, x, first, count, out[p]);
#endif
    }
}

/* Two panels times up to 32 tokens, added to columns of `hidden`. */
static void add_to(float *hidden, const Matrix *w, int panel, const Unpacked *ready, const Activations *x, int first,
                   int count, Form form) {
    float part[2][BATCH][LANES] __attribute__((aligned(64)));
#ifdef HAS_AMX
    if (form == TILES) {
        add_bfloats(w, panel, ready, x, first, count, hidden);
        return;
    }
#endif
    multiply(w, panel, 2, ready, x, first, count, form, part);
    for (int t = 0; t < count; t++) {
        float *to = hidden + (size_t)(first + t) * w->rows + panel * LANES;
        for (int i = 0; i < 2 * LANES; i += WIDTH) store(to + i, load(to + i) + load(part[i / LANES][t] + i % LANES));
    }
}

INLINE int batch_size(int first, int total) { return total - first < BATCH ? total - first : BATCH; }
