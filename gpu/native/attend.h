/* Attention of a step, in the way that pays for each of its tokens. */
#pragma once
#include "team.h"
#include "wide.h"

/* Where a member keeps what it unpacks. */
INLINE Unpacked *own_memory(const Member *own) {
    const Scratch *s = own->work.scratch;
    return s->unpacked + (size_t)own->index * s->most_unpacked;
}

static void attend_all(Member *own, const Layer *layer, Form form) {
    const Model *m = own->work.model;
    const Step *step = &own->work.step;
    Scratch *s = own->work.scratch;
    int wide = 0;
#ifdef HAS_AMX
    if (s->num_shared && !layer->window) {
        FOR_PIECES(task, own, s->num_shared * m->kv_heads)
            attend_widely(m, layer, step, s, s->shared + task / m->kv_heads, task % m->kv_heads, form, own_memory(own));
        pass(own);
    }
    wide = s->num_spans * m->kv_heads;
#endif
    FOR_PIECES(task, own, wide + s->num_tiles * m->kv_heads) {
#ifdef HAS_AMX
        if (task < wide) {
            attend_widely(m, layer, step, s, s->spans + task / m->kv_heads, task % m->kv_heads, form, own_memory(own));
            continue;
        }
#endif
        int narrow = task - wide;
        attend(m, layer, step, s, s->tiles + narrow / m->kv_heads, narrow % m->kv_heads, form);
    }
    pass(own);
}
