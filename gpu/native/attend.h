/* Attention of a step, in the way that pays for each of its tokens. */
#pragma once
#include "panels.h"
#include "wide.h"

/* None where there are no more. */
INLINE HeadOfTile head_of_tile(const Model *m, const Span *tiles, int count, int task) {
    if (task >= count * m->kv_heads) return (HeadOfTile){0};
    return (HeadOfTile){tiles + task / m->kv_heads, task % m->kv_heads};
}

static void attend_all(Member *own, const Layer *layer, Form form) {
    const Model *m = own->work.model;
    const Step *step = &own->work.step;
    Scratch *s = own->work.scratch;
    int wide = s->num_spans * m->kv_heads, ahead = own->team->size;
    if (own->work.num_shared && !layer->window) {
        FOR_PIECES(task, own, own->work.num_shared * m->kv_heads) {
#ifdef HAS_AMX
            attend_widely(m, layer, step, s, s->shared + task / m->kv_heads, task % m->kv_heads, form, own_memory(own));
#else
            attend(m, layer, step, s, head_of_tile(m, s->shared, s->num_shared, task), (HeadOfTile){0}, form);
#endif
        }
        pass(own);
    }
    FOR_PIECES(task, own, wide + s->num_tiles * m->kv_heads) {
#ifdef HAS_AMX
        if (task < wide) {
            attend_widely(m, layer, step, s, s->spans + task / m->kv_heads, task % m->kv_heads, form, own_memory(own));
            continue;
        }
#endif
        int tile = task - wide;
        attend(m, layer, step, s, head_of_tile(m, s->tiles, s->num_tiles, tile),
               head_of_tile(m, s->tiles, s->num_tiles, tile + ahead), form);
    }
    pass(own);
}
