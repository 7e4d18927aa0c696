/* Heads of queries, keys and values: made, turned, and put where they belong. */
#pragma once
#include "norm.h"

INLINE void rotate(float *head, const float *cosines, const float *sines, int half) {
    for (int i = 0; i < half; i += 8) {
        for (int k = i; k < i + 8 && k < half; k++) {
            float a = head[k], b = head[k + half];
            head[k] = a * cosines[k] - b * sines[k];
            head[k + half] = b * cosines[k] + a * sines[k];
        }
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
    for (int d = 0; d < m->dim; d++) to[(size_t)d * LANES] = float_to_half(key[d]);
}

static void keep_value(const Model *m, const Layer *layer, const Step *step, int token, int kv_head, const float *value) {
    int within = step->positions[token] % m->block_size;
    size_t row = (block_of(step, token, m->block_size) * m->kv_heads + kv_head) * m->block_size + within;
    uint16_t *to = layer->values + row * m->dim;
    for (int d = 0; d < m->dim; d++) to[d] = float_to_half(value[d]);
}

/* One head of queries, keys or values for every token: product, norm, rotation, and where it belongs. */
static void make_head(const Model *m, const Layer *layer, const Step *step, Scratch *s, int head,
                      Unpacked *memory) {
    int dim = m->dim, panels = dim / LANES;
    int is_query = head < m->heads, is_key = !is_query && head < m->heads + m->kv_heads;
    const float *norm = is_query ? layer->q_norm : is_key ? layer->k_norm : NULL;
    float made[TILE][512] __attribute__((aligned(64))), part[TILE][LANES];
    int groups = layer->qkv.cols / GROUP;
    const Unpacked *ready =
        unpack_panels(&layer->qkv, head * panels, panels, &s->normed, step->num_tokens, memory);
    for (int first = 0; first < step->num_tokens; first += TILE) {
        int count = tile_size(first, step->num_tokens);
        for (int p = 0; p < panels; p++) {
            multiply(&layer->qkv, head * panels + p, panel_of(ready, p, groups), &s->normed, first, count, part);
            for (int t = 0; t < count; t++) memcpy(made[t] + p * LANES, part[t], sizeof part[t]);
        }
        for (int t = 0; t < count; t++) {
            int token = first + t;
            float *x = made[t];
            if (norm) {
                float factor = norm_factor(x, dim, m->eps);
                for (int d = 0; d < dim; d++) x[d] *= factor * norm[d];
            }
            if (is_query || is_key) {
                size_t turn = (size_t)step->positions[token] * (dim / 2);
                rotate(x, m->cosines + turn, m->sines + turn, dim / 2);
            }
            if (is_query) memcpy(s->queries + ((size_t)token * m->heads + head) * dim, x, (size_t)dim * 4);
            else if (is_key) keep_key(m, layer, step, token, head - m->heads, x);
            else keep_value(m, layer, step, token, head - m->heads - m->kv_heads, x);
        }
    }
}
