/* Normalised activations. */
#pragma once
#include "products.h"
#include "team.h"

INLINE float norm_factor(const float *x, int size, float eps) {
    floats squares = splat(0);
    for (int i = 0; i < size; i += WIDTH) {
        floats v = load(x + i);
        squares += v * v;
    }
    return 1.0f / sqrtf(sum_of(squares) / (float)size + eps);
}

/* Normalise a token and keep it in a form. */
static void normalise(const float *x, const float *weight, float eps, Activations *to, int t, Form form) {
    float factor = norm_factor(x, to->cols, eps);
    float group[GROUP];
    for (int g = 0; g < to->cols / GROUP; g++) {
        const float *from = x + g * GROUP, *scale = weight + g * GROUP;
        UNROLL for (int i = 0; i < GROUP; i += WIDTH) store(group + i, load(from + i) * factor * load(scale + i));
        keep_group(group, to, t, g, form);
    }
}

static void normalise_all(Member *own, const float *hidden, const float *weight, Activations *to, int count,
                          Form form) {
    const Model *m = own->work.model;
    const int size = 16;
    FOR_PIECES(piece, own, (count + size - 1) / size)
        for (int t = piece * size; t < count && t < (piece + 1) * size; t++)
            normalise(hidden + (size_t)t * m->hidden, weight, m->eps, to, t, form);
    pass(own);
}
