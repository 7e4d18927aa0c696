/* The team of threads that computes a step. */
#pragma once
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "model.h"

#define STACK (1 << 20) /* bytes of a thread's; some systems would give it no more than what a head takes */

/* A job is a row of phases, and a phase a number of pieces. Members claim pieces, and a phase is over
 * when its pieces are done: not when all members are there, so that one who lost its processor holds
 * up nobody. It finds its phases over when it comes back, and passes through them. */
typedef struct {
    const Model *model;
    Step step;
    struct Scratch *scratch;
    uint32_t first_phase;
    int32_t num_shared; /* spans: they have a phase of their own, also for one who comes when the next job is prepared */
} Work;

typedef struct {
    int size;
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int round; /* jobs begun; written under the lock */
    int leaves;
    Work work;
    _Atomic uint64_t state; /* the phase, and in the low half the pieces of it that are claimed */
    atomic_int done;        /* pieces of this phase that are done */
    atomic_int rounds;      /* the same as `round`, to look at without the lock */
    atomic_int joined;      /* threads that have begun to serve */
} Team;

typedef struct {
    Team *team;
    Work work;
    uint32_t phase;
    int index;
} Member;

INLINE void pause_a_little(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The next piece of this phase, or -1. */
INLINE int claim(Member *own, int pieces) {
    uint64_t state = atomic_load_explicit(&own->team->state, memory_order_acquire);
    while (state >> 32 == own->phase && (int)(uint32_t)state < pieces)
        if (atomic_compare_exchange_weak(&own->team->state, &state, state + 1)) return (int)(uint32_t)state;
    return -1;
}

/* A piece is done; with the last one the phase is over. */
INLINE void finish(Member *own, int pieces) {
    if (atomic_fetch_add(&own->team->done, 1) + 1 < pieces) return;
    atomic_store(&own->team->done, 0);
    atomic_store_explicit(&own->team->state, (uint64_t)(own->phase + 1) << 32, memory_order_release);
}

/* Wait for the end of the phase. */
static void pass(Member *own) {
    for (int spins = 0; atomic_load_explicit(&own->team->state, memory_order_acquire) >> 32 == own->phase; spins++) {
        pause_a_little();
        if (spins > 2000) sched_yield(); /* who has the last piece has lost its processor */
    }
    own->phase++;
}

/* Every piece of one phase. */
#define FOR_PIECES(piece, own, pieces) \
    for (int piece; (piece = claim(own, pieces)) >= 0; finish(own, pieces))

static void forward(Member *own);

static void *serve(void *given) {
    Team *team = given;
    int seen = 0, index = atomic_fetch_add(&team->joined, 1) + 1;
    for (;;) {
        for (int spins = 0; spins < 20000 && atomic_load(&team->rounds) == seen; spins++) pause_a_little();
        pthread_mutex_lock(&team->lock);
        while (team->round == seen) pthread_cond_wait(&team->wake, &team->lock);
        seen = team->round;
        Member own = {team, team->work, team->work.first_phase, index};
        int leaves = team->leaves;
        pthread_mutex_unlock(&team->lock);
        if (leaves) return NULL;
        forward(&own);
    }
}

static void begin_round(Team *team, const Work *work) {
    pthread_mutex_lock(&team->lock);
    if (work) team->work = *work;
    else team->leaves = 1;
    atomic_store(&team->rounds, ++team->round);
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->lock);
}

void stepahead_team_free(Team *team) {
    if (!team) return;
    begin_round(team, NULL);
    for (int i = 1; i < team->size; i++) pthread_join(team->threads[i], NULL);
    free(team->threads);
    free(team);
}

Team *stepahead_team_new(int32_t size) {
    Team *team = calloc(1, sizeof *team);
    if (!team) return NULL;
    team->threads = calloc((size_t)size, sizeof *team->threads);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->wake, NULL);
    team->size = 1;
    for (int i = 1; team->threads && i < size; i++) {
        if (pthread_create(&team->threads[i], &attributes, serve, team)) break; /* then with fewer */
        team->size = i + 1;
    }
    pthread_attr_destroy(&attributes);
    return team;
}
