/* Attention over paged keys and values, some queries at a time, in chunks of positions whose
 * weights are brought to a common maximum (the online softmax of Milakov and Gimelshein 2018). */
#pragma once
#include "spans.h"

#define CHUNK 128  /* positions whose scores are kept at once */

typedef struct {
    const float *query[QUERIES];
    int32_t begin[QUERIES], end[QUERIES]; /* positions it sees */
    float out[QUERIES][512];
    float most[QUERIES], total[QUERIES];
    float scores[QUERIES][CHUNK];
} Attending;

/* Where the strips of some positions lie. */
typedef struct {
    int base, positions;
    const uint16_t *keys[CHUNK / LANES], *values[CHUNK / LANES];
} Chunk;

/* A key head of a tile. */
typedef struct {
    const QueryTile *tile;
    int kv_head;
} HeadOfTile;

/* How many vectors of each of `count` queries are worked on at once, to have twelve under way. */
#define WAYS(count) ((count) * PARTS <= 3 ? 4 : (count) * PARTS <= 6 ? 2 : 1)

/* Scores of `count` queries for the positions of `ways` strips of keys. */
INLINE void score_strips(const Chunk *c, int strip, int dim, Attending *a, const int count, const int ways) {
    const uint16_t *const *keys = c->keys + strip, *const *values = c->values + strip;
    const int wide = ways * PARTS;
    Own sums[QUERIES * PARTS];
    UNROLL for (int i = 0; i < count * wide; i++) sums[i] = (Own){};
    for (int d = 0; d < dim; d++) {
        UNROLL for (int way = 0; way < ways; way++) /* a line of values for two of keys */
            if (d % 2 == 0) __builtin_prefetch(values[way] + d * LANES);
        UNROLL for (int part = 0; part < wide; part++) {
            Own k = halves_to_own(keys[part / PARTS] + (size_t)d * LANES + part % PARTS * OWN);
            UNROLL for (int q = 0; q < count; q++) sums[q * wide + part] += k * a->query[q][d];
        }
    }
    UNROLL for (int i = 0; i < count * wide; i++)
        *(Own *)(a->scores[i / wide] + strip * LANES + i % wide * OWN) = sums[i];
}

/* For a constant number of queries. */
INLINE void score_keys(const Chunk *c, int dim, Attending *a, const int count) {
    int i = 0, strips = c->positions / LANES;
    for (; i + WAYS(count) <= strips; i += WAYS(count)) score_strips(c, i, dim, a, count, WAYS(count));
    for (; i < strips; i++) score_strips(c, i, dim, a, count, 1);
}

/* out[q][16 * ways of dim] += weights[q][positions] * values[positions][...]. */
INLINE void weigh_lanes(const Chunk *c, const Chunk *next, int positions, int dim, int lane, Attending *a, const int count,
                        const int ways) {
    const int wide = ways * PARTS;
    Own sums[QUERIES * PARTS];
    UNROLL for (int i = 0; i < count * wide; i++) sums[i] = *(const Own *)(a->out[i / wide] + lane + i % wide * OWN);
    for (int p = 0; p < positions; p++) {
        const uint16_t *value = c->values[p / LANES] + p % LANES * dim + lane;
        for (int line = 0; p < next->positions && line < ways * LANES; line += 32) /* as many keys behind them */
            __builtin_prefetch(next->keys[p / LANES] + p % LANES * dim + lane + line);
        UNROLL for (int part = 0; part < wide; part++) {
            Own v = halves_to_own(value + part * OWN);
            UNROLL for (int q = 0; q < count; q++) sums[q * wide + part] += v * a->scores[q][p];
        }
    }
    UNROLL for (int i = 0; i < count * wide; i++) *(Own *)(a->out[i / wide] + lane + i % wide * OWN) = sums[i];
}

/* For a constant number of queries. */
INLINE void weigh_values(const Chunk *c, const Chunk *next, int positions, int dim, Attending *a, const int count) {
    int lane = 0;
    for (; lane + WAYS(count) * LANES <= dim; lane += WAYS(count) * LANES)
        weigh_lanes(c, next, positions, dim, lane, a, count, WAYS(count));
    for (; lane < dim; lane += LANES) weigh_lanes(c, next, positions, dim, lane, a, count, 1);
}

#define FOR_COUNT(call)                                                                  \
    switch (count) {                                                                     \
        EACH(1, call) EACH(2, call) EACH(3, call) EACH(4, call) EACH(5, call)            \
        EACH(6, call) EACH(7, call) EACH(8, call) EACH(9, call) EACH(10, call)           \
        EACH(11, call)                                                                   \
    default: call(QUERIES); break;                                                       \
    }
#define EACH(n, call) case n: call(n); break;
#if !defined(HAS_VNNI) && !defined(HAS_AVX2)
#undef FOR_COUNT
#define FOR_COUNT(call) call(count);
#endif

static void score(const Chunk *c, int dim, Attending *a, int count) {
#define SCORE(n) score_keys(c, dim, a, n)
    FOR_COUNT(SCORE)
}

static void weigh(const Chunk *c, const Chunk *next, int positions, int dim, Attending *a, int count) {
#define WEIGH(n) weigh_values(c, next, positions, dim, a, n)
    FOR_COUNT(WEIGH)
}

/* From scores to weights, with what was summed before brought to the new maximum. */
INLINE void soften(const Model *m, Attending *a, int q, int base, int positions) {
    float *scores = a->scores[q];
    floats most = splat(-INFINITY);
    for (int p = 0; p < positions; p += LANES) {
        floats s = load(scores + p) * m->scale;
        if (base + p < a->begin[q] || base + p + LANES > a->end[q])
            for (int i = 0; i < LANES; i++)
                if (base + p + i < a->begin[q] || base + p + i >= a->end[q]) s[i] = -INFINITY;
        store(scores + p, s);
        most = larger(most, s);
    }
    float best = largest_of(most);
    if (best == -INFINITY) {
        memset(scores, 0, (size_t)positions * 4);
        return;
    }
    if (best > a->most[q]) {
        float shrink = expf(a->most[q] - best);
        a->total[q] *= shrink;
        for (int d = 0; d < m->dim; d += LANES) store(a->out[q] + d, load(a->out[q] + d) * shrink);
        a->most[q] = best;
    }
    floats total = splat(0);
    for (int p = 0; p < positions; p += LANES) {
        floats s = load(scores + p), weights = exp_of(s - a->most[q]);
        weights = (floats)((ints)weights & (s > splat(-INFINITY)));
        store(scores + p, weights);
        total += weights;
    }
    a->total[q] += sum_of(total);
}

/* A query row at its start, or where the prefix that it shares ends. */
INLINE void begin_query(const Model *m, const Scratch *s, int token, int head, int begin, int goes_on, Attending *a,
                        int q) {
    size_t place = (size_t)token * m->heads + head;
    a->query[q] = s->queries + place * m->dim;
    a->begin[q] = begin;
    if (goes_on) {
        a->most[q] = s->partials[place].most;
        a->total[q] = s->partials[place].total;
        memcpy(a->out[q], s->partial_out + place * m->dim, (size_t)m->dim * 4);
        return;
    }
    a->most[q] = -INFINITY;
    a->total[q] = 0;
    memset(a->out[q], 0, (size_t)m->dim * 4);
}

/* Where a row's keys and values of the positions from `base` on lie; none of them from `last` on. */
INLINE void find_chunk(const Model *m, const Layer *layer, const Step *step, int row, int kv_head, int base, int last,
                       Chunk *to) {
    const int32_t *table = step->tables + (size_t)row * step->table_width;
    int size = m->block_size, positions = 0;
    for (; positions < CHUNK && base + positions < last; positions += LANES) {
        int position = base + positions, within = position % size;
        size_t head = (size_t)table[position / size] * m->kv_heads + kv_head;
        to->keys[positions / LANES] = layer->keys + (head * (size / LANES) + within / LANES) * m->dim * LANES;
        to->values[positions / LANES] = layer->values + (head * size + within) * m->dim;
    }
    to->base = base;
    to->positions = positions;
}

/* The first position that a token sees of its own, behind a prefix that it shares. */
INLINE int first_seen(const Layer *layer, const Step *step, const Scratch *s, int token) {
    if (!layer->window) return s->seen[token];
    int end = step->positions[token] + 1;
    return end > layer->window ? end - layer->window : 0;
}

/* The first chunk of a tile: from the first position that any of its tokens sees. */
INLINE void find_first(const Model *m, const Layer *layer, const Step *step, const Scratch *s, const QueryTile *tile,
                       int kv_head, Chunk *to) {
    int begin = first_seen(layer, step, s, tile->first), last = step->positions[tile->first + tile->count - 1] + 1;
    find_chunk(m, layer, step, tile->row, kv_head, begin / LANES * LANES, last, to);
}

/* One key head for a tile of tokens of one row, kept in `attended`; `after` is what this thread will
 * probably work on next. */
static void attend(const Model *m, const Layer *layer, const Step *step, Scratch *s, HeadOfTile now, HeadOfTile after,
                   Form form) {
    Attending a;
    const QueryTile *tile = now.tile;
    int group = m->heads / m->kv_heads, count = 0, last = step->positions[tile->first + tile->count - 1] + 1;
    for (int t = tile->first; t < tile->first + tile->count; t++) {
        int begin = first_seen(layer, step, s, t);
        for (int h = 0; h < group; h++, count++) {
            a.end[count] = step->positions[t] + 1;
            begin_query(m, s, t, now.kv_head * group + h, begin, begin && !layer->window, &a, count);
        }
    }
    Chunk chunks[2], *chunk = chunks, *next = chunks + 1;
    find_first(m, layer, step, s, tile, now.kv_head, chunk);
    for (int base = chunk->base; base < last; base += CHUNK) {
        next->positions = 0;
        if (base + CHUNK < last) find_chunk(m, layer, step, tile->row, now.kv_head, base + CHUNK, last, next);
        else if (after.tile) find_first(m, layer, step, s, after.tile, after.kv_head, next);
        score(chunk, m->dim, &a, count);
        for (int q = 0; q < count; q++) soften(m, &a, q, base, chunk->positions);
        int seen = last - base < chunk->positions ? last - base : chunk->positions; /* what lies behind is not written */
        weigh(chunk, next, seen, m->dim, &a, count);
        Chunk *done = chunk;
        chunk = next;
        next = done;
    }
    for (int q = 0; q < count; q++) {
        float share = 1.0f / a.total[q];
        for (int d = 0; d < m->dim; d += LANES) store(a.out[q] + d, load(a.out[q] + d) * share);
        int t = tile->first + q / group, head = now.kv_head * group + q % group;
        for (int g = 0; g < m->dim / GROUP; g++)
            keep_group(a.out[q] + g * GROUP, &s->attended, t, head * (m->dim / GROUP) + g, form);
    }
}
