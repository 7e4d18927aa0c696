/* What a member does while tiles are multiplied, which leave everything else of the processor idle. */
#pragma once
#include "bfloats.h"
#include "words.h"

/* Weights are unpacked that are multiplied next: groups of a packed matrix, one after the other. */
typedef struct {
    const Matrix *matrix;
    size_t next, end;
    Unpacked *to;
    int pace; /* groups for 32 columns of what is multiplied meanwhile */
} Unpacking;

/* So many of them, while there are any. */
INLINE void unpack_some(Unpacking *u, size_t most) {
    for (; most && u->next < u->end; most--, u->next++, u->to += LANES * GROUP) {
#if defined(HAS_AMX)
        unpack_bfloats(u->matrix, u->next, u->to);
#elif !defined(HAS_VNNI)
        unpack_words(u->matrix, u->next, u->to);
#endif
    }
}

/* And what was multiplied before is finished, token by token. */
typedef struct {
    void (*finish)(const void *what, int token);
    const void *what;
    int next, end;
} Finishing;

typedef struct {
    Unpacking coming;
    Finishing made;
} Meanwhile;

/* As much as fits 32 columns. */
INLINE void work_meanwhile(Meanwhile *m) {
    unpack_some(&m->coming, m->coming.pace);
    if (m->made.next < m->made.end) m->made.finish(m->made.what, m->made.next++);
}

/* What is left of what was made. */
INLINE void finish_made(Meanwhile *m) {
    while (m->made.next < m->made.end) m->made.finish(m->made.what, m->made.next++);
}
