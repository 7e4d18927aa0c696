/* Attention of a step, in the way that pays for each of its tokens. */
#pragma once
#include "panels.h"
#include "wide.h"

/* None where there are no more. */
INLINE HeadOfTile head_of_tile(const Model *m, const Span *tiles, int count, int task) {
    if (task >= count * m->kv_heads) return (HeadOfTile){0};
    return (HeadOfTile){tiles + task / m->kv_heads, task % m->kv_heads};
}

#define LEAST_TILES 4 /* for each member: from then on one attends with all key heads of a tile */

/* Key heads of a tile that one member attends with. Those of a block lie side by side, and the processor
 * fetches more than is asked for: the next head, which is then wanted. Few tiles are better divided. */
INLINE int heads_at_once(const Model *m, const Scratch *s, const Team *team) {
    return s->num_tiles < LEAST_TILES * team->size ? 1 : m->kv_heads;
}

/* Some key heads of the tiles, from `first` on; after them a member will probably work on `after`. */
static void attend_tiles_of(const Model *m, const Layer *layer, const Step *step, Scratch *s, int first, int heads,
                            int after, Form form) {
    for (int task = first; task < first + heads; task++) {
        int next = task + 1 < first + heads ? task + 1 : after;
        attend(m, layer, step, s, head_of_tile(m, s->tiles, s->num_tiles, task),
               head_of_tile(m, s->tiles, s->num_tiles, next), form);
    }
}

static void attend_all(Member *own, const Layer *layer, Form form) {
    const Model *m = own->work.model;
    const Step *step = &own->work.step;
    Scratch *s = own->work.scratch;
    int wide = s->num_spans * m->kv_heads, heads = heads_at_once(m, s, own->team);
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
    FOR_PIECES(task, own, wide + s->num_tiles * m->kv_heads / heads) {
#ifdef HAS_AMX
        if (task < wide) {
            attend_widely(m, layer, step, s, s->spans + task / m->kv_heads, task % m->kv_heads, form, own_memory(own));
            continue;
        }
#endif
        int first = (task - wide) * heads;
        attend_tiles_of(m, layer, step, s, first, heads, first + own->team->size * heads, form);
    }
    pass(own);
}
