/* Attention of many queries to the same positions, through matrix tiles in bfloat16: those of a prompt,
 * or of rows that share a prefix (FlashAttention's order of work, Dao et al. 2022). */
#pragma once
#include "attention.h"
#include "spans.h"

/* Numbers of 16 bits that a task needs. */
static size_t attention_size(int dim) {
    return (size_t)dim * (4 * WIDE + 3 * CHUNK) + 3 * TILE * CHUNK;
}

#ifdef HAS_AMX
/* The score of what is not seen: beside any that is, its weight is zero, and what a row has summed
 * while it saw nothing is multiplied by zero once it does. */
#define UNSEEN -1e30f

#define STRIPS (CHUNK / LANES)

/* What a task works on. Query rows are a token's heads, token after token. */
typedef struct {
    int rows;        /* query rows, at most WIDE */
    Bfloat *queries; /* [rows / 16][dim / 32][high and low][16][32], scaled for powers of 2 */
    Bfloat *keys;    /* [strips][dim / 32][high and low][16 dim pairs][16 positions][2] */
    Bfloat *values;  /* [strips / 2][dim / 16][16 position pairs][16][2] */
    Bfloat *weights; /* [strips / 2][16][32] of one tile of query rows */
    float *scores;   /* [16][CHUNK] of one tile of query rows */
    float *out;      /* [rows][dim] */
    int32_t begin[WIDE], end[WIDE];
    float most[WIDE], total[WIDE];
} Attention;

static void lay_out_attention(Attention *a, int dim, Bfloat *memory) {
    a->queries = memory;
    a->keys = a->queries + 2 * WIDE * dim;
    a->values = a->keys + 2 * CHUNK * dim;
    a->weights = a->values + CHUNK * dim;
    a->scores = (float *)(a->weights + TILE * CHUNK);
    a->out = a->scores + TILE * CHUNK;
}

/* 16 numbers in bfloat16, as one half of a tile's row. */
INLINE void keep_bfloats(floats x, Bfloat *to) {
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)x));
}

/* What bfloat16 holds of x. */
INLINE floats high_part(floats x) { return (floats)(((uints)x + 0x8000) & 0xffff0000); }

/* Scores decide over everything that follows, so queries and keys are in two parts each. */
INLINE void keep_parts(floats x, Bfloat *high, Bfloat *low) {
    keep_bfloats(x, high);
    keep_bfloats(x - high_part(x), low);
}

static void take_queries(const Model *m, const Step *step, const Scratch *s, const Span *span, int kv_head, int window,
                         Attention *a) {
    int group = m->heads / m->kv_heads, row = 0;
    float scale = m->scale * 1.44269504f;
    for (int i = 0; i < span->count; i++) {
        int token = span->tokens[i], end = step->positions[token] + 1;
        for (int h = 0; h < group; h++, row++) {
            const float *query = s->queries + ((size_t)token * m->heads + kv_head * group + h) * m->dim;
            Bfloat *to = a->queries + (size_t)(row / TILE) * 2 * TILE * m->dim + row % TILE * GROUP;
            for (int d = 0; d < m->dim; d += GROUP, to += 2 * TILE * GROUP)
                for (int i = 0; i < GROUP; i += LANES)
                    keep_parts(load(query + d + i) * scale, to + i, to + TILE * GROUP + i);
            a->end[row] = end < span->end ? end : span->end;
            a->begin[row] = window && end > window ? end - window : 0;
            a->most[row] = UNSEEN;
            a->total[row] = 0;
        }
    }
    a->rows = row;
    memset(a->out, 0, (size_t)row * m->dim * 4);
}

/* Keys and values of a strip of positions, of which the first `known` are written. */
static void take_strip(const Model *m, const Layer *layer, const int32_t *table, int kv_head, int position, int known,
                       int strip, Attention *a) {
    int size = m->block_size, dim = m->dim, within = position % size;
    size_t head = (size_t)table[position / size] * m->kv_heads + kv_head;
    const uint16_t *keys = layer->keys + (head * (size / LANES) + within / LANES) * dim * LANES;
    const uint16_t *values = layer->values + (head * size + within) * dim;
    Bfloat *to = a->keys + (size_t)strip * 2 * LANES * dim;
    for (int d = 0; d < dim; d += 2) {
        Bfloat *pair = to + (size_t)(d / GROUP) * 2 * LANES * GROUP + d % GROUP * LANES;
        floats first = halves_to_floats(keys + d * LANES), second = halves_to_floats(keys + (d + 1) * LANES);
        *(ints *)pair = pairs_of(first, second);
        *(ints *)(pair + LANES * GROUP) = pairs_of(first - high_part(first), second - high_part(second));
    }
    to = a->values + (size_t)(strip / 2) * 2 * LANES * dim + strip % 2 * (LANES / 2) * 2 * LANES;
    for (int d = 0; d < dim; d += LANES, to += 2 * LANES * LANES)
        for (int p = 0; p < LANES; p += 2) {
            floats first = splat(0), second = splat(0); /* what is not written may be anything */
            if (p < known) first = halves_to_floats(values + p * dim + d);
            if (p + 1 < known) second = halves_to_floats(values + (p + 1) * dim + d);
            *(ints *)(to + p * LANES) = pairs_of(first, second);
        }
}

/* Add a strip's scores to tile `sum`, a constant: all but the product of the low parts. */
#define ADD_SCORES(sum, keys)                       \
    _tile_loadd(6, keys, 64);                       \
    _tile_dpbf16ps(sum, 4, 6);                      \
    _tile_loadd(7, (keys) + LANES * GROUP, 64);     \
    _tile_dpbf16ps(sum, 5, 6);                      \
    _tile_dpbf16ps(sum, 4, 7);

/* Scores of a tile of query rows, four strips at a time. */
static void score_tile(const Attention *a, int tile, int strips, int dim) {
    const Bfloat *queries = a->queries + (size_t)tile * 2 * TILE * dim;
    const size_t apart = (size_t)2 * LANES * dim;
    for (int strip = 0; strip < strips; strip += 4) {
        const Bfloat *keys = a->keys + (size_t)strip * apart;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int d = 0; d < dim; d += GROUP, keys += 2 * LANES * GROUP) {
            _tile_loadd(4, queries + d * 2 * TILE, 64);
            _tile_loadd(5, queries + d * 2 * TILE + TILE * GROUP, 64);
            ADD_SCORES(0, keys)
            ADD_SCORES(1, keys + apart)
            ADD_SCORES(2, keys + 2 * apart)
            ADD_SCORES(3, keys + 3 * apart)
        }
        float *to = a->scores + strip * LANES;
        _tile_stored(0, to, CHUNK * 4);
        _tile_stored(1, to + LANES, CHUNK * 4);
        _tile_stored(2, to + 2 * LANES, CHUNK * 4);
        _tile_stored(3, to + 3 * LANES, CHUNK * 4);
    }
}

/* A query row's scores for positions from `base` on become weights; what was summed before is brought
 * to the new maximum. */
static void soften_row(Attention *a, int row, int base, int strips, int dim) {
    float *scores = a->scores + row % TILE * CHUNK;
    floats most = splat(UNSEEN);
    for (int i = 0; i < strips; i++) {
        floats s = load(scores + i * LANES);
        int at = base + i * LANES;
        if (at < a->begin[row] || at + LANES > a->end[row]) {
            int low = a->begin[row] - at, high = a->end[row] - at;
            low = low < 0 ? 0 : low > LANES ? LANES : low;
            high = high < 0 ? 0 : high > LANES ? LANES : high;
            __mmask16 seen = (__mmask16)(((1u << high) - 1) & ~((1u << low) - 1));
            s = (floats)_mm512_mask_blend_ps(seen, (__m512)splat(UNSEEN), (__m512)s);
            store(scores + i * LANES, s);
        }
        most = larger(most, s);
    }
    float best = largest_of(most), *out = a->out + (size_t)row * dim;
    if (best > a->most[row]) {
        floats shrink = power_of_2(splat(a->most[row] - best));
        for (int d = 0; d < dim; d += LANES) store(out + d, load(out + d) * shrink);
        a->total[row] *= shrink[0];
        a->most[row] = best;
    }
    floats total = splat(0), level = splat(a->most[row]);
    Bfloat *weights = a->weights + row % TILE * GROUP;
    for (int i = 0; i < strips; i++) {
        floats s = load(scores + i * LANES), w = power_of_2(s - level);
        total += w;
        keep_bfloats(w, weights + i / 2 * TILE * GROUP + i % 2 * LANES);
    }
    a->total[row] += sum_of(total);
}

/* 64 or 32 dimensions of out += weights times values; `dims` is a constant. */
INLINE void weigh_dims(const Bfloat *weights, const Bfloat *values, int strips, int dim, const int dims, float *out) {
    const size_t apart = 2 * LANES * LANES;
    _tile_loadd(0, out, dim * 4);
    _tile_loadd(1, out + LANES, dim * 4);
    if (dims == 64) _tile_loadd(2, out + 2 * LANES, dim * 4);
    if (dims == 64) _tile_loadd(3, out + 3 * LANES, dim * 4);
    for (int pair = 0; pair < strips / 2; pair++, values += (size_t)2 * LANES * dim) {
        _tile_loadd(4, weights + (size_t)pair * TILE * GROUP, 64);
        _tile_loadd(5, values, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, values + apart, 64);
        _tile_dpbf16ps(1, 4, 6);
        if (dims != 64) continue;
        _tile_loadd(7, values + 2 * apart, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, values + 3 * apart, 64);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, out, dim * 4);
    _tile_stored(1, out + LANES, dim * 4);
    if (dims == 64) _tile_stored(2, out + 2 * LANES, dim * 4);
    if (dims == 64) _tile_stored(3, out + 3 * LANES, dim * 4);
}

static void weigh_tile(const Attention *a, int tile, int strips, int dim) {
    float *out = a->out + (size_t)tile * TILE * dim;
    int d = 0;
    for (; d + 64 <= dim; d += 64) weigh_dims(a->weights, a->values + (size_t)d * 2 * LANES, strips, dim, 64, out + d);
    if (d < dim) weigh_dims(a->weights, a->values + (size_t)d * 2 * LANES, strips, dim, 32, out + d);
}

/* What was found goes on in `attend`, or is the end of it. */
static void give_out(const Model *m, Scratch *s, const Span *span, int kv_head, Form form, const Attention *a) {
    int group = m->heads / m->kv_heads, groups = m->dim / GROUP;
    for (int row = 0; row < a->rows; row++) {
        int token = span->tokens[row / group], head = kv_head * group + row % group;
        float *out = a->out + (size_t)row * m->dim;
        if (span->goes_on) {
            size_t place = (size_t)token * m->heads + head;
            s->partials[place] = (Partial){a->most[row] * 0.693147181f, a->total[row]};
            memcpy(s->partial_out + place * m->dim, out, (size_t)m->dim * 4);
            continue;
        }
        float share = 1.0f / a->total[row];
        for (int d = 0; d < m->dim; d += LANES) store(out + d, load(out + d) * share);
        for (int g = 0; g < groups; g++) keep_group(out + g * GROUP, &s->attended, token, head * groups + g, form);
    }
}

/* One key head for the tokens of a span. */
static void attend_widely(const Model *m, const Layer *layer, const Step *step, Scratch *s, const Span *span,
                          int kv_head, Form form, Bfloat *memory) {
    Attention a;
    lay_out_attention(&a, m->dim, memory);
    take_queries(m, step, s, span, kv_head, layer->window, &a);
    const int32_t *table = step->tables + (size_t)span->row * step->table_width;
    for (int base = a.begin[0] / LANES * LANES; base < span->end; base += CHUNK) {
        int strips = 0;
        for (; strips < STRIPS && base + strips * LANES < span->end; strips++)
            take_strip(m, layer, table, kv_head, base + strips * LANES, span->end - base - strips * LANES, strips, &a);
        for (; strips % 4; strips++) { /* tiles take four strips; nobody sees these */
            memset(a.keys + (size_t)strips * 2 * LANES * m->dim, 0, (size_t)2 * LANES * m->dim * 2);
            Bfloat *to = a.values + (size_t)(strips / 2) * 2 * LANES * m->dim + strips % 2 * LANES * LANES;
            for (int d = 0; d < m->dim; d += LANES, to += 2 * LANES * LANES) memset(to, 0, LANES * LANES * 2);
        }
        for (int first = 0; first < a.rows; first += TILE) {
            int last = first + TILE < a.rows ? first + TILE : a.rows;
            if (base >= a.end[last - 1] || base + CHUNK <= a.begin[first]) continue;
            score_tile(&a, first / TILE, strips, m->dim);
            for (int row = first; row < last; row++) soften_row(&a, row, base, strips, m->dim);
            weigh_tile(&a, first / TILE, strips, m->dim);
        }
    }
    give_out(m, s, span, kv_head, form, &a);
}
#endif
