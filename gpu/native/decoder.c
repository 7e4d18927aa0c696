/* A Llama-like decoder on quantised weights: one call computes one step.
 *
 * Plain C with GCC's vector extensions, compiled by the system's compiler for the processor it
 * runs on; where the processor has AVX-512 VNNI and AMX the products use them. No libraries.
 */
#include "attend.h"
#include "heads.h"
#include "packing.h"
#include "plan.h"
#include "team.h"

/* hidden += x times the matrix, whose rows are a multiple of 32. */
static void add_product(Member *own, const Matrix *w, const Activations *x, float *hidden, int count) {
    FOR_PANELS(p, own, w, x, count, 2)
        for (int first = p.start; first < p.end; first += BATCH)
            add_to(hidden, &p.panels, x, first, batch_size(first, p.end), &p.meanwhile);
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

/* 32 columns of gate and of up for some tokens, and where what becomes of them is kept. */
typedef struct {
    const float (*values)[2][GROUP];
    Activations *to;
    int first, group;
    Form form, next;
} GateUp;

/* silu(gate) * up, the input of `down`. */
static void finish_gate_up(const void *what, int token) {
    const GateUp *made = what;
    const float *gate = made->values[token - made->first][0], *up = made->values[token - made->first][1];
    float group[GROUP];
    UNROLL for (int i = 0; i < GROUP; i += WIDTH) store(group + i, silu_in(made->form, load(gate + i)) * load(up + i));
    keep_group(group, made->to, token, made->group, made->next);
}

static void gate_up(Member *own, const Matrix *w, const Activations *x, Activations *to, int count, Form next) {
    float values[2][BATCH][2][GROUP] __attribute__((aligned(64)));
    GateUp made[2];
    FOR_PANELS(p, own, w, x, count, 4) {
        for (int first = p.start, now = 0; first < p.end; first += BATCH, now = 1 - now) {
            int size = batch_size(first, p.end);
            multiply(&p.panels, 4, x, first, size, &p.meanwhile, values[now][0][0], 2 * GROUP);
            finish_made(&p.meanwhile);
            made[now] = (GateUp){values[now], to, first, p.panels.first / 4, p.panels.form, next};
            p.meanwhile.made = (Finishing){finish_gate_up, made + now, first, first + size};
        }
    }
    pass(own);
}

#define HEAD_PANELS 8 /* of a piece of the head */
#define NEIGHBOURS (HEAD_PANELS * LANES)

/* 16 neighbours of the vocabulary, of which some are there, against the best so far. */
INLINE void compare(const float *logits, int lanes, int first, Best *best) {
    int above = lanes < LANES;
    UNROLL for (int i = 0; i < LANES; i += WIDTH) above |= is_any_above(load(logits + i), best->logit);
    if (!above) return;
    for (int i = 0; i < lanes && i < LANES && best->logit == best->logit; i++)
        if (!(logits[i] <= best->logit)) *best = (Best){logits[i], first + i};
}

/* Of tokens from `first` on, for so many neighbours from `place` on. */
static void keep_logits(const Member *own, int place, int lanes, int first, int size, const float (*made)[NEIGHBOURS]) {
    const Step *step = &own->work.step;
    for (int t = 0; t < size; t++) {
        if (step->logits) {
            memcpy(step->logits + (size_t)(first + t) * own->work.model->vocab + place, made[t], (size_t)lanes * 4);
            continue;
        }
        Best *best = step->best + (size_t)own->index * step->num_wanted + first + t;
        for (int i = 0; i < lanes; i += LANES) compare(made[t] + i, lanes - i, place + i, best);
    }
}

static void make_logits(Member *own, const Matrix *w, const Activations *x, int count) {
    float made[BATCH][NEIGHBOURS] __attribute__((aligned(64)));
    FOR_PANELS(p, own, w, x, count, HEAD_PANELS) {
        int left = w->rows / LANES - p.panels.first, panels = left < HEAD_PANELS ? left : HEAD_PANELS;
        int place = p.panels.first * LANES, there = own->work.model->vocab - place;
        for (int first = p.start; first < p.end; first += BATCH) {
            int size = batch_size(first, p.end);
            multiply(&p.panels, panels, x, first, size, &p.meanwhile, made[0], NEIGHBOURS);
            keep_logits(own, place, there < NEIGHBOURS ? there : NEIGHBOURS, first, size, made);
        }
    }
    pass(own);
}

static void run_layer(Member *own, const Layer *layer) {
    const Step *step = &own->work.step;
    Scratch *s = own->work.scratch;
    int count = step->num_tokens;
    Form form = form_for(&layer->qkv, &s->normed, count);
    normalise_all(own, s->hidden, layer->input_norm, &s->normed, count, form);
    make_heads(own, layer);
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

/* What a member needs: the weights that are unpacked at once, of a head, of 32 columns of gate and up, or of
 * neighbours of the vocabulary, and as many that come next; or what attends to them. */
static size_t count_unpacked(const Model *m) {
    size_t panels = m->dim / LANES > HEAD_PANELS ? m->dim / LANES : HEAD_PANELS;
    size_t numbers = panels * m->hidden, attended = (size_t)2 * m->heads * m->dim, inner = (size_t)2 * m->inner;
    if (numbers < attended) numbers = attended;
    if (numbers < inner) numbers = inner;
    size_t weights = 2 * numbers * LANES, attention = attention_size(m->dim);
    return weights > attention ? weights : attention;
}

static size_t lay_out(Scratch *s, const Model *m, int tokens, int members, char *base) {
    char *at = base;
    s->capacity = tokens;
    s->tokens = take(&at, (size_t)tokens * 4);
    s->positions = take(&at, (size_t)tokens * 4);
    s->rows = take(&at, (size_t)tokens * 4);
    s->wanted = take(&at, (size_t)tokens * 4);
    s->best = take(&at, (size_t)members * tokens * sizeof *s->best);
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

static void compute(Team *team, Scratch *s, const Model *model, const Step *step) {
    Work work = {model, *step, s, (uint32_t)(atomic_load(&team->state) >> 32), s->num_shared};
    if (team->size > 1) begin_round(team, &work);
    Member own = {team, work, work.first_phase, 0};
    forward(&own);
}

/* Compute a plan; 0, or -1 where memory does not suffice, or -2 where a row lies outside of the tables. */
int32_t stepahead_forward(Team *team, Scratch *s, const Model *model, const Plan *plan) {
    int tokens = count_tokens(plan);
    if (tokens < 0) return -2;
    if (make_room(s, model, tokens, team->size)) return -1;
    Step step = expand(plan, s);
    make_spans(s, model, &step);
    forget_best(&step, team->size);
    compute(team, s, model, &step);
    if (!step.logits) tell_best(&step, team->size, plan);
    return 0;
}

/* The logits behind more tokens of the plan computed last, no more at once than that had tokens. */
void stepahead_logits_behind(Team *team, Scratch *s, const Model *model, const int32_t *tokens, int32_t count,
                             float *logits) {
    Step step = {.num_wanted = count, .wanted = tokens, .logits = logits};
    compute(team, s, model, &step);
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
