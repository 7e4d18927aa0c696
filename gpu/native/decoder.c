/* A Llama-like decoder on quantised weights: one call computes one step.
 *
 * Plain C with GCC's vector extensions, compiled by the system's compiler for the processor it
 * runs on; where the processor has AVX-512 VNNI and AMX the products use them. No libraries.
 */
#include "attend.h"
#include "heads.h"
#include "packing.h"
#include "team.h"

INLINE int blocks_of(int tokens) { return (tokens + BLOCK - 1) / BLOCK; }

INLINE int end_of_block(int first, int tokens) { return tokens - first < BLOCK ? tokens : first + BLOCK; }

/* hidden += x times the matrix, whose rows are a multiple of 32. */
static void add_product(Member *own, const Matrix *w, const Activations *x, float *hidden, int count) {
    Form form = form_for(w, x, count);
    int pairs = w->rows / LANES / 2;
    FOR_PIECES(piece, own, pairs * blocks_of(count)) {
        int pair = piece % pairs, start = piece / pairs * BLOCK, end = end_of_block(start, count);
        const Unpacked *ready = prepare(w, 2 * pair, 2, form, own_memory(own));
        for (int first = start; first < end; first += BATCH)
            add_to(hidden, w, 2 * pair, ready, x, first, batch_size(first, end), form);
    }
    pass(own);
}

/* As near as what the products are made in. */
INLINE floats silu_in(Form form, floats x) {
#ifdef HAS_VNNI
    if (form == TILES) return rough_silu(x);
#endif
    (void)form;
    return silu(x);
}

/* silu(gate) * up for 32 columns at once, kept as the input of `down`. */
static void gate_up(Member *own, const Matrix *w, const Activations *x, Activations *to, int count, Form next) {
    float gate[2][BATCH][LANES] __attribute__((aligned(64))), up[2][BATCH][LANES] __attribute__((aligned(64)));
    float group[GROUP];
    Form form = form_for(w, x, count);
    int groups = to->cols / GROUP;
    FOR_PIECES(piece, own, groups * blocks_of(count)) {
        int g = piece % groups, start = piece / groups * BLOCK, end = end_of_block(start, count);
        const Unpacked *ready = prepare(w, 4 * g, 4, form, own_memory(own));
        for (int first = start; first < end; first += BATCH) {
            int size = batch_size(first, end);
            multiply(w, 4 * g, 2, ready, x, first, size, form, gate);
            multiply(w, 4 * g + 2, 2, unpacked_panel(ready, 2, w), x, first, size, form, up);
            for (int t = 0; t < size; t++) {
                UNROLL for (int i = 0; i < GROUP; i += WIDTH) {
                    const float *passed = gate[i / LANES][t] + i % LANES, *made = up[i / LANES][t] + i % LANES;
                    store(group + i, silu_in(form, load(passed)) * load(made));
                }
                keep_group(group, to, first + t, g, next);
            }
        }
    }
    pass(own);
}

#define HEAD_PANELS 8 /* of a piece of the head */

/* 16 neighbours of the vocabulary, of which some are there, against the best so far. */
INLINE void compare(const float *logits, int lanes, int first, Best *best) {
    int above = lanes < LANES;
    UNROLL for (int i = 0; i < LANES; i += WIDTH) above |= is_any_above(load(logits + i), best->logit);
    if (!above) return;
    for (int i = 0; i < lanes && i < LANES && best->logit == best->logit; i++)
        if (!(logits[i] <= best->logit)) *best = (Best){logits[i], first + i};
}

/* A pair of panels times tokens from `first` on. */
static void keep_logits(const Member *own, int panel, int first, int size, float (*part)[BATCH][LANES]) {
    const Step *step = &own->work.step;
    int vocab = own->work.model->vocab, place = panel * LANES;
    int lanes = vocab - place < 2 * LANES ? vocab - place : 2 * LANES;
    for (int t = 0; t < size; t++) {
        if (!step->logits) {
            Best *best = step->best + (size_t)own->index * step->num_wanted + first + t;
            compare(part[0][t], lanes, place, best);
            compare(part[1][t], lanes - LANES, place + LANES, best);
            continue;
        }
        float *to = step->logits + (size_t)(first + t) * vocab + place;
        memcpy(to, part[0][t], (size_t)(lanes < LANES ? lanes : LANES) * 4);
        if (lanes > LANES) memcpy(to + LANES, part[1][t], (size_t)(lanes - LANES) * 4);
    }
}

static void make_logits(Member *own, const Matrix *w, const Activations *x, int count) {
    int panels = w->rows / LANES;
    float part[2][BATCH][LANES] __attribute__((aligned(64)));
    Form form = form_for(w, x, count);
    FOR_PIECES(piece, own, (panels + HEAD_PANELS - 1) / HEAD_PANELS) {
        for (int panel = piece * HEAD_PANELS; panel < panels && panel < (piece + 1) * HEAD_PANELS; panel += 2) {
            int pair = panels - panel < 2 ? 1 : 2;
            const Unpacked *ready = prepare(w, panel, pair, form, own_memory(own));
            for (int first = 0; first < count; first += BATCH) {
                int size = batch_size(first, count);
                multiply(w, panel, pair, ready, x, first, size, form, part);
                keep_logits(own, panel, first, size, part);
            }
        }
    }
    pass(own);
}

static void run_layer(Member *own, const Layer *layer) {
    const Model *m = own->work.model;
    const Step *step = &own->work.step;
    Scratch *s = own->work.scratch;
    int count = step->num_tokens;
    Form form = form_for(&layer->qkv, &s->normed, count);
    normalise_all(own, s->hidden, layer->input_norm, &s->normed, count, form);
    int heads = m->heads + 2 * m->kv_heads;
    FOR_PIECES(piece, own, heads * blocks_of(count)) {
        int start = piece / heads * BLOCK;
        make_head(m, layer, step, s, piece % heads, start, end_of_block(start, count), form, own_memory(own));
    }
    pass(own);
    attend_all(own, layer, form_for(&layer->out, &s->attended, count));
    add_product(own, &layer->out, &s->attended, s->hidden, count);
    form = form_for(&layer->gate_up, &s->normed, count);
    normalise_all(own, s->hidden, layer->mlp_norm, &s->normed, count, form);
    gate_up(own, &layer->gate_up, &s->normed, &s->inner, count, form_for(&layer->down, &s->inner, count));
    add_product(own, &layer->down, &s->inner, s->hidden, count);
}

static void forward(Member *own) {
    const Model *m = own->work.model;
    const Step *step = &own->work.step;
    Scratch *s = own->work.scratch;
#ifdef HAS_AMX
    if (s->normed.most_planes >= 0) shape_tiles();
#endif
    if (step->num_tokens) {
        FOR_PIECES(t, own, step->num_tokens) look_up(m, step->tokens[t], s->hidden + (size_t)t * m->hidden);
        pass(own);
        for (int number = 0; number < m->num_layers; number++) run_layer(own, m->layers + number);
    }
    if (step->num_wanted) {
        Form form = form_for(&m->head, &s->normed, step->num_wanted);
        FOR_PIECES(t, own, step->num_wanted)
            normalise(s->hidden + (size_t)step->wanted[t] * m->hidden, m->norm, m->eps, &s->normed, t, form);
        pass(own);
        make_logits(own, &m->head, &s->normed, step->num_wanted);
    }
#ifdef HAS_AMX
    if (s->normed.most_planes >= 0) _tile_release();
#endif
}

/* ---- Scratch memory ---------------------------------------------------------------------- */

static void *take(char **at, size_t size) {
    void *taken = *at;
    *at += (size + 63) / 64 * 64;
    return taken;
}

static void take_activations(Activations *a, char **at, int tokens, int cols, int most_planes) {
    a->cols = cols;
    a->most_planes = most_planes;
#if defined(HAS_AMX)
    if (!may_use_tiles()) a->most_planes = -1;
#elif defined(HAS_VNNI)
    a->most_planes = -1;
#endif
    a->quants = take(at, (size_t)tokens * cols * sizeof(Unpacked));
    a->scales = take(at, (size_t)tokens * (cols / GROUP) * 4);
    a->sums = take(at, (size_t)tokens * (cols / GROUP) * 4);
}

/* What a member needs: the weights that are unpacked at once, of a head or of 32 columns of gate and
 * up; or what attends to them. */
static size_t count_unpacked(const Model *m) {
    size_t panels = m->dim / LANES > 4 ? m->dim / LANES : 4;
    int cols = m->hidden > m->inner ? m->hidden : m->inner;
    if (m->heads * m->dim > cols) cols = m->heads * m->dim;
    size_t weights = panels * (size_t)cols * LANES, attention = attention_size(m->dim);
    return weights > attention ? weights : attention;
}

static size_t lay_out(Scratch *s, const Model *m, int tokens, int members, char *base) {
    char *at = base;
    s->capacity = tokens;
    s->hidden = take(&at, (size_t)tokens * m->hidden * 4);
    s->queries = take(&at, (size_t)tokens * m->heads * m->dim * 4);
    take_activations(&s->normed, &at, tokens, m->hidden, m->most_planes);
    take_activations(&s->attended, &at, tokens, m->heads * m->dim, m->most_planes);
    take_activations(&s->inner, &at, tokens, m->inner, m->most_planes);
    s->tiles = take(&at, (size_t)tokens * sizeof *s->tiles);
    s->spans = take(&at, (size_t)tokens * sizeof *s->spans);
    s->shared = take(&at, (size_t)tokens * sizeof *s->shared);
    s->order = take(&at, (size_t)tokens * sizeof *s->order);
    s->sharers = take(&at, (size_t)tokens * sizeof *s->sharers);
    s->seen = take(&at, (size_t)tokens * sizeof *s->seen);
    s->partials = take(&at, (size_t)tokens * m->heads * sizeof *s->partials);
    s->partial_out = take(&at, (size_t)tokens * m->heads * m->dim * 4);
    s->most_unpacked = count_unpacked(m);
    s->unpacked = take(&at, members * s->most_unpacked * sizeof *s->unpacked);
    return (size_t)(at - base);
}

Scratch *stepahead_scratch_new(void) { return calloc(1, sizeof(Scratch)); }

void stepahead_scratch_free(Scratch *s) {
    if (s) free(s->memory);
    free(s);
}

static int make_room(Scratch *s, const Model *m, int tokens, int members) {
    tokens = (tokens + BATCH - 1) / BATCH * BATCH;
    if (tokens <= s->capacity) return 0;
    free(s->memory);
    s->memory = NULL;
    size_t size = lay_out(s, m, tokens, members, (char *)64);
    if (posix_memalign(&s->memory, 64, size)) {
        s->memory = NULL;
        s->capacity = 0;
        return -1;
    }
    lay_out(s, m, tokens, members, s->memory);
    return 0;
}

/* Compute a step; 0, or -1 where memory does not suffice. One without tokens gives more of the
 * logits behind those of the step before it, no more at once than that had tokens. */
int32_t stepahead_forward(Team *team, Scratch *s, const Model *model, const Step *step) {
    if (make_room(s, model, step->num_tokens, team->size)) return -1;
    make_spans(s, model, step);
    Work work = {model, *step, s, (uint32_t)(atomic_load(&team->state) >> 32), s->num_shared};
    if (team->size > 1) begin_round(team, &work);
    Member own = {team, work, work.first_phase, 0};
    forward(&own);
    return 0;
}

/* Products of a weight and an activation that a thread makes of prompts, in thousand millions a second,
 * as measured on one processor of the kind; 0 where this build does not use what the processor has, and
 * is right, but slow. */
int32_t stepahead_rate(void) {
#if defined(HAS_AMX)
    return may_use_tiles() ? 150 : 60;
#elif defined(HAS_VNNI) || defined(HAS_AVX2)
    return 60;
#else
    return 0;
#endif
}
