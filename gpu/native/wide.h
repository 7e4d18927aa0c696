/* Attention of many queries to the same positions, through matrix tiles in bfloat16: those of a prompt,
 * or of rows that share a prefix (FlashAttention's order of work, Dao et al. 2022). */
#pragma once
#include "attention.h"
#include "spans.h"

#define STRIPS 4              /* of a pass, whose keys and values stay in the first cache */
#define PASS (STRIPS * LANES) /* positions */

/* Numbers of 16 bits that a task needs. */
static size_t attention_size(int dim) {
    return (size_t)dim * (3 * WIDE + 3 * PASS) + 6 * TILE * PASS + 2 * WIDE * LANES;
}

#ifdef HAS_AMX
/* The score of what is not seen: beside any that is, its weight is zero, and what a row has summed
 * while it saw nothing is multiplied by zero once it does. */
#define UNSEEN -1e30f

/* Keys and values stand in bfloat16's place as the float16 that they are, 2^112 too small, which
 * queries take back, and weights most of it: with more, the sum of many would be infinite. */
#define QUERY_FACTOR 0x1p112f
#define WEIGHT_POWER 100
#define TOTAL_FACTOR 0x1p-100f
#define VALUE_FACTOR 0x1p-12f /* of what weights times values are */

/* What a task works on. Query rows are a token's heads, token after token. */
typedef struct {
    int rows, dim;      /* query rows, at most WIDE */
    Bfloat *queries;    /* [rows / 16][dim / 32][16][32], scaled for powers of 2 */
    Bfloat *keys;       /* [dim / 32][high and low][strips][16 dim pairs][16 positions][2] */
    Bfloat *values;     /* [strips / 2][dim / 16][16 position pairs][16][2] */
    Bfloat *weights[2]; /* [strips / 2][16][32] of one tile of query rows, and of the next */
    float *scores[2];   /* [16][PASS], the same */
    float *out;         /* [rows][dim] */
    float *totals;      /* [rows][16] sums of weights, of each 16th position */
    int32_t begin[WIDE], end[WIDE];
    float most[WIDE];
} Attention;

static void lay_out_attention(Attention *a, int dim, Bfloat *memory) {
    a->dim = dim;
    a->queries = memory;
    a->keys = a->queries + WIDE * dim;
    a->values = a->keys + 2 * PASS * dim;
    a->weights[0] = a->values + PASS * dim;
    a->weights[1] = a->weights[0] + TILE * PASS;
    a->scores[0] = (float *)(a->weights[1] + TILE * PASS);
    a->scores[1] = a->scores[0] + TILE * PASS;
    a->out = a->scores[1] + TILE * PASS;
    a->totals = a->out + WIDE * dim;
}

/* 16 numbers in bfloat16, as one half of a tile's row. */
INLINE void keep_bfloats(floats x, Bfloat *to) {
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)x));
}

static void take_queries(const Model *m, const Step *step, const Scratch *s, const Span *span, int kv_head, int window,
                         Attention *a) {
    int group = m->heads / m->kv_heads, row = 0;
    float scale = m->scale * 1.44269504f * QUERY_FACTOR;
    for (int i = 0; i < span->count; i++) {
        int token = span->tokens[i], end = step->positions[token] + 1;
        for (int h = 0; h < group; h++, row++) {
            const float *query = s->queries + ((size_t)token * m->heads + kv_head * group + h) * m->dim;
            Bfloat *to = a->queries + (size_t)(row / TILE) * TILE * m->dim + row % TILE * GROUP;
            for (int d = 0; d < m->dim; d += GROUP, to += TILE * GROUP)
                for (int i = 0; i < GROUP; i += LANES) keep_bfloats(load(query + d + i) * scale, to + i);
            a->end[row] = end < span->end ? end : span->end;
            a->begin[row] = window && end > window ? end - window : 0;
            a->most[row] = UNSEEN;
            store(a->totals + row * LANES, splat(0));
        }
    }
    a->rows = row;
    memset(a->out, 0, (size_t)row * m->dim * 4);
}

/* a - b in float16. */
INLINE __m512i half_difference(__m512i a, __m512i b) {
#ifdef __AVX512FP16__
    return (__m512i)_mm512_sub_ph((__m512h)a, (__m512h)b);
#else
    __m512i difference = _mm512_setzero_si512();
    UNROLL for (int i = 0; i < 2; i++) {
        __m512 x = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(a, i));
        __m512 rest = _mm512_sub_ps(x, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(b, i)));
        difference = _mm512_inserti64x4(difference, _mm512_cvtps_ph(rest, _MM_FROUND_TO_NEAREST_INT), i);
    }
    return difference;
#endif
}

/* Numbers `from`, `from` + `apart`, `from` + 1 and so on of the 64 of two vectors. */
INLINE __m512i in_pairs(int from, int apart) {
    uint16_t order[GROUP];
    UNROLL for (int i = 0; i < GROUP; i++) order[i] = (uint16_t)(from + i / 2 + i % 2 * apart);
    return _mm512_loadu_si512(order);
}

/* Keys decide over everything that follows, so they are in two parts, which hold all of float16. The high
 * one is cut off and not rounded: what is near the largest number would be infinite. */
static void take_keys(const uint16_t *keys, int strip, Attention *a) {
    Bfloat *to = a->keys + strip * LANES * GROUP;
    for (int d = 0; d < a->dim; d += GROUP, to += 2 * STRIPS * LANES * GROUP)
        UNROLL for (int i = 0; i < GROUP; i += 2) {
            __m512i both = _mm512_permutexvar_epi16(in_pairs(0, LANES), _mm512_loadu_si512(keys + (d + i) * LANES));
            __m512i high = _mm512_and_si512(both, _mm512_set1_epi16(-8)), low = half_difference(both, high);
            _mm512_storeu_si512(to + i * LANES, in_place(rounded(high)));
            _mm512_storeu_si512(to + i * LANES + STRIPS * LANES * GROUP, in_place(rounded(low)));
        }
}

/* What is not written may be anything: as it stands here it is a finite number, and its weight is zero. */
static void take_values(const uint16_t *values, int strip, Attention *a) {
    Bfloat *to = a->values + strip / 2 * 2 * LANES * a->dim + strip % 2 * LANES * LANES;
    for (int d = 0; d < a->dim; d += GROUP, to += 4 * LANES * LANES)
        UNROLL for (int p = 0; p < LANES; p += 2) {
            __m512i first = _mm512_loadu_si512(values + p * a->dim + d);
            __m512i second = _mm512_loadu_si512(values + (p + 1) * a->dim + d);
            __m512i low = _mm512_permutex2var_epi16(first, in_pairs(0, GROUP), second);
            __m512i high = _mm512_permutex2var_epi16(first, in_pairs(LANES, GROUP), second);
            _mm512_storeu_si512(to + p * LANES, in_place(rounded(low)));
            _mm512_storeu_si512(to + p * LANES + 2 * LANES * LANES, in_place(rounded(high)));
        }
}

/* Where the keys and values of a pass of positions lie, strip by strip; null where there are none. */
typedef struct {
    const uint16_t *keys[STRIPS], *values[STRIPS];
} Pass;

static Pass find_pass(const Model *m, const Layer *layer, const int32_t *table, int kv_head, int base, int end) {
    Pass pass = {0};
    int size = m->block_size;
    for (int strip = 0; strip < STRIPS && base + strip * LANES < end; strip++) {
        int position = base + strip * LANES, within = position % size;
        size_t head = (size_t)table[position / size] * m->kv_heads + kv_head;
        pass.keys[strip] = layer->keys + (head * (size / LANES) + within / LANES) * m->dim * LANES;
        pass.values[strip] = layer->values + (head * size + within) * m->dim;
    }
    return pass;
}

static void take_pass(const Pass *pass, Attention *a) {
    static const uint16_t nothing[LANES * 512];
    for (int strip = 0; strip < STRIPS; strip++) {
        if (pass->keys[strip]) take_keys(pass->keys[strip], strip, a);
        take_values(pass->keys[strip] ? pass->values[strip] : nothing, strip, a);
    }
}

/* So many lines of it, from `line` on, are asked for. */
INLINE void ask_for_pass(const Pass *pass, int dim, int line, int lines) {
    int size = dim / 2; /* of a strip's keys, and of its values */
    for (int last = line + lines; line < last; line++) {
        int strip = line / size % STRIPS;
        const uint16_t *from = line < STRIPS * size ? pass->keys[strip] : pass->values[strip];
        if (line < 2 * STRIPS * size && from) __builtin_prefetch(from + line % size * GROUP);
    }
}

/* Products that are to come for a tile of query rows, a part at a time: while rows of others are
 * softened, which leaves the tiles idle. */
typedef struct {
    const Bfloat *rows, *columns;
    float *to;
    int dim, at, parts; /* parts done, of how many */
} Pending;

static Pending scores_of(const Attention *a, int tile) {
    const Bfloat *queries = a->queries + (size_t)tile * TILE * a->dim;
    return (Pending){queries, a->keys, a->scores[tile % 2], a->dim, 0, a->dim / GROUP * 4};
}

/* Two strips times 32 dimensions, high or low. */
INLINE void score_part(Pending *s) {
    if (s->at == 0) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    if (s->at % 4 == 0) _tile_loadd(4, s->rows + s->at / 4 * TILE * GROUP, 64);
    _tile_loadd(6, s->columns, 64);
    _tile_loadd(7, s->columns + LANES * GROUP, 64);
    if (s->at % 2 == 0) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    } else {
        _tile_dpbf16ps(2, 4, 6);
        _tile_dpbf16ps(3, 4, 7);
    }
    s->columns += 2 * LANES * GROUP;
    if (++s->at < s->parts) return;
    _tile_stored(0, s->to, PASS * 4);
    _tile_stored(1, s->to + LANES, PASS * 4);
    _tile_stored(2, s->to + 2 * LANES, PASS * 4);
    _tile_stored(3, s->to + 3 * LANES, PASS * 4);
}

static Pending sums_of(const Attention *a, int tile) {
    float *out = a->out + (size_t)tile * TILE * a->dim;
    return (Pending){a->weights[tile % 2], a->values, out, a->dim, 0, a->dim / GROUP * 2};
}

/* 32 dimensions of out += weights times values, of half the positions. */
INLINE void weigh_part(Pending *s) {
    const Bfloat *values = s->columns + (size_t)s->at % 2 * 2 * LANES * s->dim;
    if (s->at % 2 == 0) {
        _tile_loadd(0, s->to, s->dim * 4);
        _tile_loadd(1, s->to + LANES, s->dim * 4);
    }
    _tile_loadd(4, s->rows + s->at % 2 * TILE * GROUP, 64);
    _tile_loadd(6, values, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, values + 2 * LANES * LANES, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (++s->at % 2) return;
    _tile_stored(0, s->to, s->dim * 4);
    _tile_stored(1, s->to + LANES, s->dim * 4);
    s->to += GROUP, s->columns += 4 * LANES * LANES;
}

/* So many parts of what is to come. */
INLINE void make_parts(Pending *scores, Pending *sums, int parts) {
    for (; parts && scores->at < scores->parts; parts--) score_part(scores);
    for (; parts && sums->at < sums->parts; parts--) weigh_part(sums);
}

/* Scores below `low` and from `high` on are not seen. */
static void hide_unseen(float *scores, int low, int high) {
    for (int i = 0; i < PASS; i += LANES, low -= LANES, high -= LANES) {
        uint32_t from = low < 0 ? 0 : low > LANES ? LANES : low, to = high < 0 ? 0 : high > LANES ? LANES : high;
        __mmask16 seen = (__mmask16)(((1u << to) - 1) & ~((1u << from) - 1));
        store(scores + i, (floats)_mm512_mask_blend_ps(seen, (__m512)splat(UNSEEN), (__m512)load(scores + i)));
    }
}

/* What was summed before is brought to a new maximum. */
static void raise_level(Attention *a, int row, float best) {
    float *out = a->out + (size_t)row * a->dim, *totals = a->totals + row * LANES;
    floats shrink = power_of_2(splat(a->most[row] - best));
    for (int d = 0; d < a->dim; d += LANES) store(out + d, load(out + d) * shrink);
    store(totals, load(totals) * shrink);
    a->most[row] = best;
}

/* A query row's scores for positions from `base` on become weights. */
INLINE void soften_row(Attention *a, int row, int base) {
    float *scores = a->scores[row / TILE % 2] + row % TILE * PASS, *totals = a->totals + row * LANES;
    int low = a->begin[row] - base, high = a->end[row] - base;
    if (low > 0 || high < PASS) hide_unseen(scores, low, high);
    floats s[STRIPS];
    UNROLL for (int i = 0; i < STRIPS; i++) s[i] = load(scores + i * LANES);
    floats most = larger(larger(s[0], s[1]), larger(s[2], s[3]));
    if (is_any_above(most, a->most[row])) raise_level(a, row, largest_of(most));
    floats total = load(totals), level = splat(a->most[row] - WEIGHT_POWER);
    Bfloat *weights = a->weights[row / TILE % 2] + row % TILE * GROUP;
    UNROLL for (int i = 0; i < STRIPS; i += 2, weights += TILE * GROUP) {
        floats first = power_of_2(s[i] - level), second = power_of_2(s[i + 1] - level);
        total += first + second;
        _mm512_storeu_si512(weights, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
    }
    store(totals, total);
}

INLINE int last_row(const Attention *a, int tile) {
    int end = (tile + 1) * TILE;
    return (end < a->rows ? end : a->rows) - 1;
}

/* Every tile of query rows that sees any of the positions from `base` on. While the rows of one are
 * softened, the scores of the next are made, what the one before found is summed, and the next positions
 * are asked for. */
static void attend_tiles(Attention *a, int base, const Pass *next) {
    int tile = 0, tiles = (a->rows + TILE - 1) / TILE;
    while (tile < tiles && base >= a->end[last_row(a, tile)]) tile++;
    while (tile < tiles && base + PASS <= a->begin[(tiles - 1) * TILE]) tiles--;
    if (tile == tiles) return;
    int lines = STRIPS * a->dim / ((tiles - tile) * TILE) + 1, line = 0;
    Pending scores = scores_of(a, tile), sums = {0};
    make_parts(&scores, &sums, scores.parts);
    for (; tile < tiles; tile++) {
        if (tile + 1 < tiles) scores = scores_of(a, tile + 1);
        int parts = scores.parts - scores.at + sums.parts - sums.at;
        for (int i = 0; i <= last_row(a, tile) - tile * TILE; i++, line += lines) {
            ask_for_pass(next, a->dim, line, lines);
            soften_row(a, tile * TILE + i, base);
            make_parts(&scores, &sums, (i + 1) * parts / TILE - i * parts / TILE);
        }
        make_parts(&scores, &sums, parts);
        sums = sums_of(a, tile);
    }
    make_parts(&scores, &sums, sums.parts);
}

/* What was found goes on in `attend`, or is the end of it. */
static void give_out(const Model *m, Scratch *s, const Span *span, int kv_head, Form form, const Attention *a) {
    int group = m->heads / m->kv_heads, groups = m->dim / GROUP;
    for (int row = 0; row < a->rows; row++) {
        int token = span->tokens[row / group], head = kv_head * group + row % group;
        float *out = a->out + (size_t)row * m->dim, total = sum_of(load(a->totals + row * LANES)) * TOTAL_FACTOR;
        if (span->goes_on) {
            size_t place = (size_t)token * m->heads + head;
            s->partials[place] = (Partial){a->most[row] * 0.693147181f, total};
            float *kept = s->partial_out + place * m->dim;
            for (int d = 0; d < m->dim; d += LANES) store(kept + d, load(out + d) / VALUE_FACTOR);
            continue;
        }
        float share = 1.0f / (total * VALUE_FACTOR);
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
    int base = a.begin[0] / LANES * LANES;
    Pass pass = find_pass(m, layer, table, kv_head, base, span->end);
    for (; base < span->end; base += PASS) {
        take_pass(&pass, &a);
        pass = find_pass(m, layer, table, kv_head, base + PASS, span->end);
        attend_tiles(&a, base, &pass);
    }
    give_out(m, s, span, kv_head, form, &a);
}
#endif
