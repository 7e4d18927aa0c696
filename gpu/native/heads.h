/* Heads of queries, keys and values: made, turned, and put where they belong. */
#pragma once
#include "norm.h"
#include "panels.h"

/* The halves of a head turned against each other; half is a multiple of 16. */
INLINE void rotate(float *head, const float *cosines, const float *sines, int half) {
    for (int i = 0; i < half; i += WIDTH) {
        floats a = load(head + i), b = load(head + i + half), c = load(cosines + i), s = load(sines + i);
        store(head + i, a * c - b * s);
        store(head + i + half, b * c + a * s);
    }
}

/* Where a token's keys and values of one head begin: its block, and its place in it. */
INLINE size_t block_of(const Step *step, int token, int block_size) {
    const int32_t *table = step->tables + (size_t)step->rows[token] * step->table_width;
    return (size_t)table[step->positions[token] / block_size];
}

static void keep_key(const Model *m, const Layer *layer, const Step *step, int token, int kv_head, const float *key) {
    int within = step->positions[token] % m->block_size;
    size_t strip = (block_of(step, token, m->block_size) * m->kv_heads + kv_head) * (m->block_size / LANES) + within / LANES;
    uint16_t *to = layer->keys + strip * m->dim * LANES + within % LANES;
    uint16_t halves_of[WIDTH];
    for (int d = 0; d < m->dim; d += WIDTH) {
        floats_to_halves(load(key + d), halves_of);
        UNROLL for (int i = 0; i < WIDTH; i++) to[(size_t)(d + i) * LANES] = halves_of[i];
    }
}

static void keep_value(const Model *m, const Layer *layer, const Step *step, int token, int kv_head, const float *value) {
    int within = step->positions[token] % m->block_size;
    size_t row = (block_of(step, token, m->block_size) * m->kv_heads + kv_head) * m->block_size + within;
    uint16_t *to = layer->values + row * m->dim;
    for (int d = 0; d < m->dim; d += WIDTH) floats_to_halves(load(value + d), to + d);
}

/* What one head's product becomes: normalised, turned, and put where it belongs. */
INLINE void place_head(const Model *m, const Layer *layer, const Step *step, Scratch *s, int head, int token,
                       float *x) {
    int dim = m->dim, is_query = head < m->heads, is_key = !is_query && head < m->heads + m->kv_heads;
    const float *norm = is_query ? layer->q_norm : is_key ? layer->k_norm : NULL;
    if (norm) {
        float factor = norm_factor(x, dim, m->eps);
        for (int d = 0; d < dim; d += WIDTH) store(x + d, load(x + d) * factor * load(norm + d));
    }
    if (is_query || is_key) {
        size_t turn = (size_t)step->positions[token] * (dim / 2);
        rotate(x, m->cosines + turn, m->sines + turn, dim / 2);
    }
    if (is_query) memcpy(s->queries + ((size_t)token * m->heads + head) * dim, x, (size_t)dim * 4);
    else if (is_key) keep_key(m, layer, step, token, head - m->heads, x);
    else keep_value(m, layer, step, token, head - m->heads - m->kv_heads, x);
}

/* A head of up to 32 tokens, whose products are at `values`. */
typedef struct {
    const Model *model;
    const Layer *layer;
    const Step *step;
    Scratch *scratch;
    int head, first;
    float *values; /* [token][dim] */
} MadeHead;

static void finish_head(const void *what, int token) {
    const MadeHead *h = what;
    place_head(h->model, h->layer, h->step, h->scratch, h->head, token, h->values + (token - h->first) * h->model->dim);
}

/* One head of queries, keys or values for each token. */
static void make_head(const Model *m, const Layer *layer, const Step *step, Scratch *s, Product *p) {
    float made[2][BATCH * 512] __attribute__((aligned(64)));
    MadeHead heads[2];
    for (int first = p->start, now = 0; first < p->end; first += BATCH, now = 1 - now) {
        int size = batch_size(first, p->end);
        multiply(&p->panels, p->size, &s->normed, first, size, &p->meanwhile, made[now], m->dim);
        finish_made(&p->meanwhile);
        heads[now] = (MadeHead){m, layer, step, s, p->panels.first / p->size, first, made[now]};
        p->meanwhile.made = (Finishing){finish_head, heads + now, first, first + size};
    }
    finish_made(&p->meanwhile);
}

static void make_heads(Member *own, const Layer *layer) {
    const Model *m = own->work.model;
    Scratch *s = own->work.scratch;
    FOR_PANELS(p, own, &layer->qkv, &s->normed, own->work.step.num_tokens, m->dim / LANES)
        make_head(m, layer, &own->work.step, s, &p);
    pass(own);
}
