/* Products of packed weights with activations, in the form that pays for the number of tokens. */
#pragma once
#include "planes.h"
#include "tiles.h"

/* How activations are kept for a matrix: in bfloat16 where many tokens make tiles pay, else in planes
 * for weights of so many bits. */
INLINE Form form_for(const Matrix *w, const Activations *x, int tokens) {
    if (x->most_planes >= 0 && tokens > x->most_planes) return TILES;
    return w->bits == 4 ? PLANES_4 : PLANES_8;
}

/* Keep 32 values in a form; group `g` of token `t`. */
INLINE void keep_group(const float *values, Activations *to, int t, int g, Form form) {
#ifdef HAS_AMX
    if (form == TILES) {
        size_t groups = (size_t)to->cols / GROUP;
        Bfloat *at = to->bfloats + ((t / TILE * groups + g) * TILE + t % TILE) * GROUP;
        *(ints *)at = (ints)_mm512_cvtne2ps_pbh((__m512)load(values + LANES), (__m512)load(values));
        return;
    }
#endif
    quantise_group(values, to, t, g, form == PLANES_4 ? 4 : 8);
}

/* Panels from `first` on, made ready for tiles in `memory` where they are used. */
static const Bfloat *prepare(const Matrix *w, int first, int count, Form form, Bfloat *memory) {
#ifdef HAS_AMX
    if (form == TILES) unpack_panels(w, first, count, memory);
#endif
    (void)w, (void)first, (void)count, (void)form;
    return memory;
}

/* One or two panels times up to 32 tokens; there is memory behind them for 32. `ready` is where
 * `prepare` put the first of them. */
static void multiply(const Matrix *w, int panel, int panels, const Bfloat *ready, const Activations *x, int first,
                     int count, Form form, float (*out)[BATCH][LANES]) {
#ifdef HAS_AMX
    if (form == TILES) {
        multiply_bfloats(w, panel, ready, x, first, panels, count, out);
        return;
    }
#endif
    (void)ready, (void)form;
    for (int p = 0; p < panels; p++) multiply_planes(w, panel + p, x, first, count, out[p]);
}

INLINE int batch_size(int first, int total) { return total - first < BATCH ? total - first : BATCH; }
