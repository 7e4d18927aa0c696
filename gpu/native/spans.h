/* Which tokens attend together: tiles of a few queries of one row, spans of many where the processor
 * has matrix tiles, and those of rows whose first blocks are the same ones. */
#pragma once
#include "products.h"

#define CHUNK 128       /* positions whose scores are kept at once */
#define QUERIES 12      /* query rows of a tile */
#define WIDE 256        /* query rows of a span */
#define LEAST_WIDE 16   /* query rows for which a span pays */

/* Positions that are worth sharing. Without matrix tiles they are chunks, in which a row would go
 * through them alone as well: then sharing changes no bit. */
#ifdef HAS_AMX
#define LEAST_SHARED 64
#define WHOLE_SHARED 1
#define SHARING WIDE
#else
#define LEAST_SHARED CHUNK
#define WHOLE_SHARED CHUNK
#define SHARING QUERIES
#endif

/* The size of as few equal parts as there can be of at most so many. */
INLINE int even_part(int count, int most) {
    int parts = (count + most - 1) / most;
    return (count + parts - 1) / parts;
}

static void add_run(Scratch *s, const Model *m, const Step *step, int first, int count, int is_wide) {
    int group = m->heads / m->kv_heads, most = is_wide ? even_part(count, WIDE / group) : QUERIES / group;
    for (int t = first; t < first + count; t += most) {
        int size = first + count - t < most ? first + count - t : most;
        Span span = {s->order + t, size, step->rows[t], step->positions[t + size - 1] + 1, 0};
        if (is_wide) s->spans[s->num_spans++] = span;
        else s->tiles[s->num_tiles++] = span;
    }
}

static const int32_t *table_of(const Step *step, int token) {
    return step->tables + (size_t)step->rows[token] * step->table_width;
}

typedef struct {
    int32_t block, token;
} Opening; /* a row's first block */

static int by_block(const void *a, const void *b) {
    const Opening *x = a, *y = b;
    return x->block != y->block ? (x->block > y->block ? 1 : -1) : x->token - y->token;
}

/* Positions that all of these tokens see, in blocks that are full and the same. */
static int count_shared(const Model *m, const Step *step, const Opening *openings, int count) {
    const int32_t *first = table_of(step, openings[0].token);
    int blocks = step->positions[openings[0].token] / m->block_size;
    for (int i = 1; i < count; i++) {
        const int32_t *table = table_of(step, openings[i].token);
        int most = step->positions[openings[i].token] / m->block_size, same = 0;
        while (same < blocks && same < most && table[same] == first[same]) same++;
        blocks = same;
    }
    return blocks * m->block_size / WHOLE_SHARED * WHOLE_SHARED;
}

/* Spans for the rows of one token whose first block is the same. */
static void add_shared(Scratch *s, const Model *m, const Step *step, const Opening *openings, int count) {
    int group = m->heads / m->kv_heads, most = SHARING / group;
    if (count * group < LEAST_WIDE) return;
    int positions = count_shared(m, step, openings, count);
    if (positions < LEAST_SHARED) return;
    for (int i = 0; i < count; i++) {
        int token = openings[i].token;
        s->seen[token] = positions;
        if (i % most == 0) {
            int size = count - i < most ? count - i : most;
            s->shared[s->num_shared++] = (Span){s->sharers + s->num_sharers, size, step->rows[token], positions, 1};
        }
        s->sharers[s->num_sharers++] = token;
    }
}

static void make_spans(Scratch *s, const Model *m, const Step *step) {
    int group = m->heads / m->kv_heads, singles = 0, may_be_wide = 0, may_share = 1;
#ifdef HAS_AMX
    may_be_wide = may_share = s->normed.most_planes > 0;
#endif
    Opening *openings = (Opening *)s->partial_out; /* free until the first layer attends */
    s->num_tiles = s->num_spans = s->num_shared = s->num_sharers = 0;
    for (int t = 0, count; t < step->num_tokens; t += count) {
        for (count = 1; t + count < step->num_tokens && step->rows[t + count] == step->rows[t]; count++) {}
        for (int i = t; i < t + count; i++) s->order[i] = i, s->seen[i] = 0;
        add_run(s, m, step, t, count, may_be_wide && count * group >= LEAST_WIDE);
        if (count == 1) openings[singles++] = (Opening){table_of(step, t)[0], t};
    }
    if (!may_share || singles * group < LEAST_WIDE) return;
    qsort(openings, (size_t)singles, sizeof *openings, by_block);
    for (int i = 0, count; i < singles; i += count) {
        for (count = 1; i + count < singles && openings[i + count].block == openings[i].block; count++) {}
        add_shared(s, m, step, openings + i, count);
    }
}
