/* A Llama-like decoder on quantised weights: one call computes one step.
 *
 * Plain C with GCC's vector extensions, compiled by the system's compiler for the processor it
 * runs on; where the processor has AVX-512 VNNI and AMX the products use them. No libraries.
 */
#include "attention.h"
#include "heads.h"
#include "packing.h"
#include "team.h"

/* Where a member unpacks panels. */
INLINE Unpacked *own_memory(const Member *own) {
    const Scratch *s = own->work.scratch;
    return s->unpacked + (size_t)own->index * s->most_unpacked;
}

/* hidden += x times the matrix. */
static void add_product(Member *own, const Matrix *w, const Activations *x, float *hidden, int count) {
    float part[TILE][LANES];
    FOR_PIECES(panel, own, w->rows / LANES) {
        const Unpacked *ready = unpack_panels(w, panel, 1, x, count, own_memory(own));
        for (int first = 0; first < count; first += TILE) {
            int size = tile_size(first, count);
            multiply(w, panel, ready, x, first, size, part);
            for (int t = 0; t < size; t++) {
                float *to = hidden + (size_t)(first + t) * w->rows + panel * LANES;
                store(to, load(to) + load(part[t]));
            }
        }
    }
    pass(own);
}

/* silu(gate) * up for 32 columns at once, quantised as the input of `down`. */
static void gate_up(Member *own, const Matrix *w, const Activations *x, Activations *to, int count,
                    int weight_bits) {
    float gate[2][TILE][LANES], up[2][TILE][LANES], group[GROUP];
    int groups = w->cols / GROUP;
    FOR_PIECES(g, own, to->cols / GROUP) {
        const Unpacked *ready = unpack_panels(w, 4 * g, 4, x, count, own_memory(own));
        for (int first = 0; first < count; first += TILE) {
            int size = tile_size(first, count);
            for (int i = 0; i < 2; i++) {
                multiply(w, 4 * g + i, panel_of(ready, i, groups), x, first, size, gate[i]);
                multiply(w, 4 * g + 2 + i, panel_of(ready, 2 + i, groups), x, first, size, up[i]);
            }
            for (int t = 0; t < size; t++) {
                for (int i = 0; i < 2; i++) {
                    floats v = load(gate[i][t]);
                    store(group + i * LANES, v / (exp_of(-v) + 1.0f) * load(up[i][t]));
                }
                quantise_group(group, to, first + t, g, weight_bits);
            }
        }
    }
    pass(own);
}

static void write_logits(Member *own, const Matrix *w, const Activations *x, float *logits, int count) {
    const int piece_size = 8;
    int panels = w->rows / LANES, vocab = own->work.model->vocab;
    float part[TILE][LANES];
    FOR_PIECES(piece, own, (panels + piece_size - 1) / piece_size) {
        for (int panel = piece * piece_size; panel < panels && panel < (piece + 1) * piece_size; panel++) {
            const Unpacked *ready = unpack_panels(w, panel, 1, x, count, own_memory(own));
            int lanes = vocab - panel * LANES < LANES ? vocab - panel * LANES : LANES;
            for (int first = 0; first < count; first += TILE) {
                int size = tile_size(first, count);
                multiply(w, panel, ready, x, first, size, part);
                for (int t = 0; t < size; t++)
                    memcpy(logits + (size_t)(first + t) * vocab + panel * LANES, part[t], (size_t)lanes * 4);
            }
        }
    }
    pass(own);
}

static void run_layer(Member *own, const Layer *layer) {
    const Model *m = own->work.model;
    const Step *step = &own->work.step;
    Scratch *s = own->work.scratch;
    int count = step->num_tokens, tiles = s->num_tiles;
    normalise_all(own, s->hidden, layer->input_norm, &s->normed, count, layer->qkv.bits);
    FOR_PIECES(head, own, m->heads + 2 * m->kv_heads) make_head(m, layer, step, s, head, own_memory(own));
    pass(own);
    FOR_PIECES(task, own, tiles * m->kv_heads)
        attend(m, layer, step, s, s->tiles + task / m->kv_heads, task % m->kv_heads);
    pass(own);
    add_product(own, &layer->out, &s->attended, s->hidden, count);
    normalise_all(own, s->hidden, layer->mlp_norm, &s->normed, count, layer->gate_up.bits);
    gate_up(own, &layer->gate_up, &s->normed, &s->inner, count, layer->down.bits);
    add_product(own, &layer->down, &s->inner, s->hidden, count);
}

static void forward(Member *own) {
    const Model *m = own->work.model;
    const Step *step = &own->work.step;
    Scratch *s = own->work.scratch;
#ifdef HAS_AMX
    if (s->normed.uses_tiles) shape_tiles();
#endif
    if (step->num_tokens) {
        FOR_PIECES(t, own, step->num_tokens) look_up(m, step->tokens[t], s->hidden + (size_t)t * m->hidden);
        pass(own);
        for (int number = 0; number < m->num_layers; number++) run_layer(own, m->layers + number);
    }
    if (step->num_wanted) {
        FOR_PIECES(t, own, step->num_wanted)
            normalise(s->hidden + (size_t)step->wanted[t] * m->hidden, m->norm, m->eps, &s->normed, t, m->head.bits);
        pass(own);
        write_logits(own, &m->head, &s->normed, step->logits, step->num_wanted);
    }
#ifdef HAS_AMX
    if (s->normed.uses_tiles) _tile_release();
#endif
}

/* ---- Scratch memory ---------------------------------------------------------------------- */

static void *take(char **at, size_t size) {
    void *taken = *at;
    *at += (size + 63) / 64 * 64;
    return taken;
}

static void take_activations(Activations *a, char **at, int tokens, int cols) {
    a->cols = cols;
#ifdef HAS_AMX
    a->uses_tiles = may_use_tiles();
#endif
    a->quants = take(at, (size_t)tokens * cols * 2);
    a->scales = take(at, (size_t)tokens * (cols / GROUP) * 4);
    a->sums = take(at, (size_t)tokens * (cols / GROUP) * 4);
}

/* Panels that are unpacked at once: those of a head, or of 32 columns of gate and up. */
static size_t count_unpacked(const Model *m) {
    size_t panels = m->dim / LANES > 4 ? m->dim / LANES : 4;
    int cols = m->hidden > m->inner ? m->hidden : m->inner;
    if (m->heads * m->dim > cols) cols = m->heads * m->dim;
    return panels * (size_t)(cols / GROUP);
}

static size_t lay_out(Scratch *s, const Model *m, int tokens, int members, char *base) {
    char *at = base;
    s->capacity = tokens;
    s->hidden = take(&at, (size_t)tokens * m->hidden * 4);
    s->queries = take(&at, (size_t)tokens * m->heads * m->dim * 4);
    take_activations(&s->normed, &at, tokens, m->hidden);
    take_activations(&s->attended, &at, tokens, m->heads * m->dim);
    take_activations(&s->inner, &at, tokens, m->inner);
    s->tiles = take(&at, (size_t)tokens * sizeof *s->tiles);
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
    tokens = (tokens + TILE - 1) / TILE * TILE;
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

static void make_tiles(Scratch *s, const Model *m, const Step *step) {
    int most = QUERIES / (m->heads / m->kv_heads);
    s->num_tiles = 0;
    for (int t = 0; t < step->num_tokens;) {
        int count = 1;
        while (count < most && t + count < step->num_tokens && step->rows[t + count] == step->rows[t]) count++;
        s->tiles[s->num_tiles++] = (QueryTile){t, count, step->rows[t]};
        t += count;
    }
}

/* Compute a step; 0, or -1 where memory does not suffice. One without tokens gives more of the
 * logits behind those of the step before it, no more at once than that had tokens. */
int32_t stepahead_forward(Team *team, Scratch *s, const Model *model, const Step *step) {
    if (make_room(s, model, step->num_tokens, team->size)) return -1;
    make_tiles(s, model, step);
    Work work = {model, *step, s, (uint32_t)(atomic_load(&team->state) >> 32)};
    if (team->size > 1) begin_round(team, &work);
    Member own = {team, work, work.first_phase, 0};
    forward(&own);
    return 0;
}

/* Whether the integer products of this build use the processor's own instruction. */
int32_t stepahead_has_vnni(void) {
#ifdef HAS_VNNI
    return 1;
#else
    return 0;
#endif
}
