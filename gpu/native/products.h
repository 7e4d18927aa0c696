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

/* Whether panels are unpacked before they are multiplied. */
INLINE int is_unpacked(Form form) { return form == TILES || form == UNPACKED_WORDS; }

/* Panels of a matrix to be multiplied. */
typedef struct {
    const Matrix *matrix;
    int first;             /* panel */
    const Unpacked *ready; /* what is unpacked of them */
    Form form;
} Panels;

/* So many of them times up to 32 tokens, to out[token][stride], where there is memory for 32. */
static void multiply(const Panels *p, int panels, const Activations *x, int first, int count, Meanwhile *meanwhile,
                     float *out, int stride) {
    const Matrix *w = p->matrix;
#ifdef HAS_AMX
    if (p->form == TILES) {
        multiply_bfloats(w, p->first, panels, p->ready, x, first, count, meanwhile, out, stride);
        return;
    }
#endif
    (void)meanwhile;
    for (int i = 0; i < panels; i++, out += LANES) {
#ifdef HAS_VNNI
        multiply_planes(w, p->first + i, x, first, count, out, stride);
#else
        const Unpacked *unpacked = is_unpacked(p->form) ? p->ready + (size_t)i * LANES * w->cols : NULL;
        multiply_words(w, p->first + i, unpacked, x, first, count, out, stride);
#endif
    }
}

/* Two panels times up to 32 tokens, added to columns of `hidden`. */
static void add_to(float *hidden, const Panels *p, const Activations *x, int first, int count, Meanwhile *meanwhile) {
#ifdef HAS_AMX
    if (p->form == TILES) {
        add_bfloats(p->matrix, p->first, p->ready, x, first, count, meanwhile, hidden);
        return;
    }
#endif
    float part[BATCH * 2 * LANES] __attribute__((aligned(64)));
    multiply(p, 2, x, first, count, meanwhile, part, 2 * LANES);
    for (int t = 0; t < count; t++) {
        float *to = hidden + (size_t)(first + t) * p->matrix->rows + p->first * LANES;
        for (int i = 0; i < 2 * LANES; i += WIDTH) store(to + i, load(to + i) + load(part + t * 2 * LANES + i));
    }
}

INLINE int batch_size(int first, int total) { return total - first < BATCH ? total - first : BATCH; }
