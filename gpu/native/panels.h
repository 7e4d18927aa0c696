/* The pieces of a product that a member claims: some panels of a matrix for a block of tokens. It claims the
 * next one before it works on one, and unpacks that meanwhile. */
#pragma once
#include "products.h"
#include "team.h"

typedef struct {
    Panels panels;       /* of the piece */
    int piece, next;     /* or -1 */
    int start, end;      /* tokens */
    Meanwhile meanwhile; /* panels of the next piece are unpacked, and these finished */
    Unpacked *memory[2]; /* of these panels and of those */
    int size, parts;     /* panels of a piece, pieces of a block of tokens */
    int tokens, block, pieces;
} Product;

/* Where a member keeps what it unpacks. */
INLINE Unpacked *own_memory(const Member *own) {
    const Scratch *s = own->work.scratch;
    return s->unpacked + (size_t)own->index * s->most_unpacked;
}

/* Tokens whose activations stay in the second cache while panel after panel is multiplied. */
INLINE int block_for(const Matrix *w) { return w->cols > BLOCK_COLS ? BLOCK / 2 : BLOCK; }

static void claim_next(Member *own, Product *p) {
    const Matrix *w = p->panels.matrix;
    p->next = claim(own, p->pieces);
    Unpacking *coming = &p->meanwhile.coming;
    *coming = (Unpacking){w, 0, 0, p->memory[1], 1};
    if (p->next < 0 || !is_unpacked(p->panels.form)) return;
    int first = p->next % p->parts * p->size, end = first + p->size, groups = w->cols / GROUP;
    if (end > w->rows / LANES) end = w->rows / LANES;
    coming->next = (size_t)first * groups;
    coming->end = (size_t)end * groups;
    if (p->end - p->start <= BATCH) coming->pace = 2; /* a pair of panels, while another is multiplied once */
}

/* The next piece is this one from now on. */
static void go_on(Member *own, Product *p) {
    finish_made(&p->meanwhile);
    unpack_some(&p->meanwhile.coming, p->meanwhile.coming.end);
    Unpacked *ready = p->memory[1];
    p->memory[1] = p->memory[0];
    p->memory[0] = ready;
    p->panels.ready = ready;
    p->piece = p->next;
    if (p->piece < 0) return;
    p->panels.first = p->piece % p->parts * p->size;
    p->start = p->piece / p->parts * p->block;
    p->end = p->start + p->block < p->tokens ? p->start + p->block : p->tokens;
    claim_next(own, p);
}

static Product begin_product(Member *own, const Matrix *w, const Activations *x, int tokens, int size) {
    Unpacked *memory = own_memory(own), *other = memory + own->work.scratch->most_unpacked / 2;
    int block = block_for(w), parts = (w->rows / LANES + size - 1) / size;
    Product p = {.panels = {.matrix = w, .form = form_for(w, x, tokens)}, .memory = {memory, other}, .size = size,
                 .parts = parts, .tokens = tokens, .block = block, .pieces = parts * ((tokens + block - 1) / block)};
    claim_next(own, &p);
    go_on(own, &p);
    return p;
}

static void end_piece(Member *own, Product *p) {
    int pieces = p->pieces;
    go_on(own, p);
    finish(own, pieces);
}

/* Every piece of a matrix, of `size` panels, times x, which has so many tokens. */
#define FOR_PANELS(p, own, matrix, x, tokens, size) \
    for (Product p = begin_product(own, matrix, x, tokens, size); p.piece >= 0; end_piece(own, &p))
