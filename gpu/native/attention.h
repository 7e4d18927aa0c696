/* Attention over paged keys and values, some queries at a time, in chunks of positions whose
 * weights are brought to a common maximum (the online softmax of Milakov and Gimelshein 2018). */
#pragma once
#include "spans.h"

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
    const Span *tile;
    int kv_head;
} HeadOfTile;

#if defined(HAS_VNNI)
#define AT_ONCE 12 /* queries that are worked on at once: their sums fit the registers */
#define WAYS(count) ((count) <= 3 ? 4 : (count) <= 6 ? 2 : 1) /* vectors of each, to have twelve under way */
#else
#define AT_ONCE 6
#define WAYS(count) ((count) <= 3 ? 4 : 2)
#endif

/* Scores of `count` queries for the positions of `ways` vectors, from `base` of the chunk on. Few
 * queries wait for the memory: values are asked for. */
INLINE void score_vectors(const Chunk *c, int base, int dim, Attending *a, int first, const int count, const int ways) {
    const uint16_t *keys[4], *values[4];
    floats sums[AT_ONCE * 2];
    UNROLL for (int way = 0; way < ways; way++) {
        int position = base + way * WIDTH;
        keys[way] = c->keys[position / LANES] + position % LANES;
        values[way] = c->values[position / LANES] + position % LANES * dim;
    }
    UNROLL for (int i = 0; i < count * ways; i++) sums[i] = (floats){};
    for (int d = 0; d < dim; d++) {
        UNROLL for (int way = 0; way < ways; way++)
            if (count < AT_ONCE && d % 2 == 0) __builtin_prefetch(values[way] + d * WIDTH); /* a line for two of keys */
        floats k[4];
        UNROLL for (int way = 0; way < ways; way++) k[way] = halves_to_floats(keys[way] + (size_t)d * LANES);
        UNROLL for (int i = 0; i < count * ways; i++) sums[i] += k[i % ways] * a->query[first + i / ways][d];
    }
    UNROLL for (int i = 0; i < count * ways; i++) store(a->scores[first + i / ways] + base + i % ways * WIDTH, sums[i]);
}

/* For a constant number of queries. */
INLINE void score_keys(const Chunk *c, int dim, Attending *a, int first, const int count) {
    const int size = WAYS(count) * WIDTH;
    int base = 0;
    for (; base + size <= c->positions; base += size) score_vectors(c, base, dim, a, first, count, WAYS(count));
    for (; size > WIDTH && base < c->positions; base += WIDTH) score_vectors(c, base, dim, a, first, count, 1);
}

/* out[q][a few vectors of dim] += weights[q][positions] * values[positions][...]. */
INLINE void weigh_vectors(const Chunk *c, const Chunk *next, int positions, int dim, int lane, Attending *a, int first,
                          const int count, const int ways) {
    floats sums[AT_ONCE * 2];
    UNROLL for (int i = 0; i < count * ways; i++) sums[i] = load(a->out[first + i / ways] + lane + i % ways * WIDTH);
    for (int p = 0; p < positions; p++) {
        const uint16_t *value = c->values[p / LANES] + p % LANES * dim + lane;
        for (int line = 0; count < AT_ONCE && p < next->positions && line < ways * WIDTH; line += 32)
            __builtin_prefetch(next->keys[p / LANES] + p % LANES * dim + lane + line); /* as many keys behind them */
        floats v[4];
        UNROLL for (int way = 0; way < ways; way++) v[way] = halves_to_floats(value + way * WIDTH);
        UNROLL for (int i = 0; i < count * ways; i++) sums[i] += v[i % ways] * a->scores[first + i / ways][p];
    }
    UNROLL for (int i = 0; i < count * ways; i++) store(a->out[first + i / ways] + lane + i % ways * WIDTH, sums[i]);
}

/* For a constant number of queries. */
INLINE void weigh_values(const Chunk *c, const Chunk *next, int positions, int dim, Attending *a, int first,
                         const int count) {
    const int size = WAYS(count) * WIDTH;
    int lane = 0;
    for (; lane + size <= dim; lane += size) weigh_vectors(c, next, positions, dim, lane, a, first, count, WAYS(count));
    for (; size > WIDTH && lane < dim; lane += WIDTH) weigh_vectors(c, next, positions, dim, lane, a, first, count, 1);
}

#define EACH(n, call) case n: call(n); break;
#define UP_TO_6(call) EACH(1, call) EACH(2, call) EACH(3, call) EACH(4, call) EACH(5, call) EACH(6, call)
#if defined(HAS_VNNI)
#define FOR_COUNT(count, call) \
    switch (count) { UP_TO_6(call) EACH(7, call) EACH(8, call) EACH(9, call) EACH(10, call) EACH(11, call) EACH(12, call) }
#elif defined(HAS_AVX2)
#define FOR_COUNT(count, call) switch (count) { UP_TO_6(call) }
#else
#define FOR_COUNT(count, call) call(count)
#endif

static void score(const Chunk *c, int dim, Attending *a, int first, int count) {
#define SCORE(n) score_keys(c, dim, a, first, n)
    FOR_COUNT(count, SCORE);
}

static void weigh(const Chunk *c, const Chunk *next, int positions, int dim, Attending *a, int first, int count) {
#define WEIGH(n) weigh_values(c, next, positions, dim, a, first, n)
    FOR_COUNT(count, WEIGH);
}

/* From scores to weights, with what was summed before brought to the new maximum. */
INLINE void soften(const Model *m, Attending *a, int q, int base, int positions) {
    float *scores = a->scores[q];
    floats most = splat(-INFINITY);
    for (int p = 0; p < positions; p += WIDTH) {
        floats s = load(scores + p) * m->scale;
        if (base + p < a->begin[q] || base + p + WIDTH > a->end[q])
            for (int i = 0; i < WIDTH; i++)
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
        for (int d = 0; d < m->dim; d += WIDTH) store(a->out[q] + d, load(a->out[q] + d) * shrink);
        a->most[q] = best;
    }
    floats total = splat(0);
    for (int p = 0; p < positions; p += WIDTH) {
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

INLINE int end_of_chunk(int base) { return base / CHUNK * CHUNK + CHUNK; }

/* Where a row's keys and values of the positions from `base` on lie; none of them from `last` on. Chunks
 * end in the same places for whoever looks, so that sums are the same as well. */
INLINE void find_chunk(const Model *m, const Layer *layer, const Step *step, int row, int kv_head, int base, int last,
                       Chunk *to) {
    const int32_t *table = step->tables + (size_t)row * step->table_width;
    int size = m->block_size, positions = 0, most = end_of_chunk(base) - base;
    for (; positions < most && base + positions < last; positions += LANES) {
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
INLINE void find_first(const Model *m, const Layer *layer, const Step *step, const Scratch *s, const Span *tile,
                       int kv_head, Chunk *to) {
    int begin = tile->goes_on ? 0 : first_seen(layer, step, s, tile->tokens[0]);
    find_chunk(m, layer, step, tile->row, kv_head, begin / LANES * LANES, tile->end, to);
}

static int begin_queries(const Model *m, const Layer *layer, const Step *step, const Scratch *s, HeadOfTile now,
                         Attending *a) {
    int group = m->heads / m->kv_heads, count = 0;
    for (int i = 0; i < now.tile->count; i++) {
        int token = now.tile->tokens[i], end = step->positions[token] + 1;
        int begin = now.tile->goes_on ? 0 : first_seen(layer, step, s, token);
        for (int h = 0; h < group; h++, count++) {
            a->end[count] = end < now.tile->end ? end : now.tile->end;
            begin_query(m, s, token, now.kv_head * group + h, begin, begin && !layer->window, a, count);
        }
    }
    return count;
}

/* What a query row found: kept in `attended`, or where it goes on from. */
static void end_query(const Model *m, Scratch *s, HeadOfTile now, int q, Form form, Attending *a) {
    int group = m->heads / m->kv_heads, token = now.tile->tokens[q / group], head = now.kv_head * group + q % group;
    if (now.tile->goes_on) {
        size_t place = (size_t)token * m->heads + head;
        s->partials[place] = (Partial){a->most[q], a->total[q]};
        memcpy(s->partial_out + place * m->dim, a->out[q], (size_t)m->dim * 4);
        return;
    }
    float share = 1.0f / a->total[q];
    for (int d = 0; d < m->dim; d += WIDTH) store(a->out[q] + d, load(a->out[q] + d) * share);
    for (int g = 0; g < m->dim / GROUP; g++)
        keep_group(a->out[q] + g * GROUP, &s->attended, token, head * (m->dim / GROUP) + g, form);
}

/* One key head for the tokens of a tile; `after` is what this thread will probably work on next. */
static void attend(const Model *m, const Layer *layer, const Step *step, Scratch *s, HeadOfTile now, HeadOfTile after,
                   Form form) {
    Attending a;
    const Span *tile = now.tile;
    int count = begin_queries(m, layer, step, s, now, &a), last = tile->end;
    Chunk chunks[2], *chunk = chunks, *next = chunks + 1;
    find_first(m, layer, step, s, tile, now.kv_head, chunk);
    for (int base = chunk->base, end; base < last; base = end) {
        end = end_of_chunk(base);
        next->positions = 0;
        if (end < last) find_chunk(m, layer, step, tile->row, now.kv_head, end, last, next);
        else if (after.tile) find_first(m, layer, step, s, after.tile, after.kv_head, next);
        int seen = last - base < chunk->positions ? last - base : chunk->positions; /* what lies behind is not written */
        for (int q = 0; q < count; q += AT_ONCE) {
            int some = count - q < AT_ONCE ? count - q : AT_ONCE;
            score(chunk, m->dim, &a, q, some);
            for (int i = q; i < q + some; i++) soften(m, &a, i, base, chunk->positions);
            weigh(chunk, next, seen, m->dim, &a, q, some);
        }
        Chunk *done = chunk;
        chunk = next;
        next = done;
    }
    for (int q = 0; q < count; q++) end_query(m, s, now, q, form, &a);
}
