/* A Llama-like decoder on quantised weights: one call computes one step.
 *
 * Plain C with GCC's vector extensions, compiled by the system's compiler for the processor it
 * runs on; where the processor has AVX-512 VNNI the integer products use it. No libraries.
 *
 * Weights are packed in panels of 16 output rows, groups of 32 input columns one after the other:
 *
 *   quants  4 bits: [panel][group][4][16 rows][4]   a byte holds column 4j+i (low) and 4j+i+16
 *           8 bits: [panel][group][8][16 rows][4]   the value plus 128
 *   scales  [panel][group][2][16 rows] float16      value = scale * quant + minimum
 *                                                   (8 bits: the minimum is -128 * scale, not kept)
 *
 * so that lane r of a vector belongs to row r and no sum ever crosses lanes. Activations have 15
 * bits in groups of 32 with a scale each, as two planes of 8: with one plane alone, 2 to 3% of the
 * most likely next tokens differ from those of float32, with both none in 600. Sums of a group are
 * exact integers, and tokens never meet in a sum, so a result does not depend on the batch. Keys lie in their block as
 * [kv_head][position / 16][dim][16 positions], values as [kv_head][position][dim], both float16.
 */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#include <immintrin.h>
#define HAS_VNNI 1
#if defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_AMX 1
#endif
#endif

#define GROUP 32  /* columns that share a scale */
#define LANES 16  /* rows of a panel, and positions of a strip of keys */
#define TILE 16   /* tokens that are multiplied at once */
#define ROWS 8    /* of them without matrix tiles */
#define QUERIES 12  /* query rows that attend at once */
#define CHUNK 128  /* positions whose scores are kept at once */

#define INLINE static inline __attribute__((always_inline))
#ifdef HAS_VNNI
#define UNROLL _Pragma("GCC unroll 16")
#else
#define UNROLL /* the portable build is small rather than fast */
#endif

typedef float floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(32), aligned(2), may_alias));
typedef int8_t bytes __attribute__((vector_size(16), aligned(1), may_alias));
typedef int32_t word __attribute__((aligned(1), may_alias));

typedef struct {
    int32_t rows, cols, bits;
    const uint8_t *quants;
    const uint16_t *scales;
    const float *bias; /* [rows] or null */
} Matrix;

typedef struct {
    const float *input_norm, *mlp_norm; /* [hidden] */
    const float *q_norm, *k_norm;       /* [dim] or null */
    Matrix qkv, out, gate_up, down;     /* gate_up: 32 rows of gate, the same 32 of up, and so on */
    uint16_t *keys, *values;            /* the layer's KV memory */
    int32_t window;                     /* positions a token sees, itself included; 0: all */
} Layer;

typedef struct {
    int32_t num_layers, hidden, inner, heads, kv_heads, dim, vocab, block_size;
    float eps, scale;
    const float *cosines, *sines; /* [positions][dim / 2] */
    const uint8_t *embedding;     /* rows as `embedding_kind` packs them */
    int32_t embedding_kind;       /* ggml's number: 0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 8 Q8_0 */
    const float *norm;
    Matrix head;
    const Layer *layers;
} Model;

typedef struct {
    int32_t num_tokens, num_wanted, table_width;
    const int32_t *tokens, *positions; /* [num_tokens] */
    const int32_t *rows;               /* [num_tokens] the row of `tables` of each token */
    const int32_t *tables;             /* [rows][table_width] block ids */
    const int32_t *wanted;             /* [num_wanted] tokens whose logits are wanted */
    float *logits;                     /* [num_wanted][vocab] */
} Step;

/* Activations: value = scale * (128 * high + low); `sums` is the sum of a group's values. */
typedef struct {
    int8_t *quants; /* [tokens][groups][2][32], high and low */
    float *scales, *sums;  /* [tokens / 16][groups][16], so that a tile's lie together */
    int32_t cols, uses_tiles;
} Activations;

typedef struct {
    int32_t first, count, row; /* tokens first .. first + count of one row */
} QueryTile;

/* ---- Small numerics ---------------------------------------------------------------------- */

INLINE floats splat(float x) { return (floats){} + x; }

INLINE floats load(const float *p) { return *(const floats *)p; }

INLINE void store(float *p, floats x) { *(floats *)p = x; }

INLINE floats larger(floats a, floats b) {
#ifdef HAS_VNNI
    return (floats)_mm512_max_ps((__m512)a, (__m512)b);
#endif
    ints mask = a > b;
    return (floats)(((ints)a & mask) | ((ints)b & ~mask));
}

INLINE float sum_of(floats x) {
#ifdef HAS_VNNI
    return _mm512_reduce_add_ps((__m512)x);
#else
    float total = 0;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
#endif
}

INLINE int sum_of_ints(ints x) {
#ifdef HAS_VNNI
    return _mm512_reduce_add_epi32((__m512i)x);
#else
    int total = 0;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
#endif
}

INLINE float largest_of(floats x) {
#ifdef HAS_VNNI
    return _mm512_reduce_max_ps((__m512)x);
#else
    float best = x[0];
    for (int i = 1; i < LANES; i++) best = x[i] > best ? x[i] : best;
    return best;
#endif
}

INLINE float half_to_float(uint16_t half) {
#ifdef HAS_VNNI
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
#else
    union { uint32_t bits; float value; } magnitude = {(uint32_t)(half & 0x7fff) << 13};
    float value = magnitude.value * 0x1p112f;
    return half & 0x8000 ? -value : value;
#endif
}

INLINE floats halves_to_floats(const uint16_t *p) {
#ifdef HAS_VNNI
    return (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#else
    ints wide = __builtin_convertvector(*(const halves *)p, ints);
    floats magnitude = (floats)((wide & 0x7fff) << 13) * 0x1p112f;
    return (floats)((ints)magnitude | ((wide & 0x8000) << 16));
#endif
}

INLINE uint16_t float_to_half(float x) {
    const float limit = 65504.0f;
    x = x > limit ? limit : x < -limit ? -limit : x;
#ifdef HAS_VNNI
    return (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), 0));
#else
    union { float value; uint32_t bits; } in = {x};
    uint32_t sign = in.bits >> 16 & 0x8000;
    in.bits &= 0x7fffffff;
    union { float value; uint32_t bits; } out = {in.value * 0x1p-112f};
    uint32_t rounded = out.bits + 0xfff + (out.bits >> 13 & 1);
    return (uint16_t)(sign | rounded >> 13);
#endif
}

/* e^x for x up to 88; a polynomial on [-0.5, 0.5] of the base-2 exponent (Cephes' coefficients). */
INLINE floats exp_of(floats x) {
    floats low = splat(-87.0f), high = splat(88.0f);
    x = larger(x, low);
    x = -larger(-x, -high);
    floats scaled = x * 1.44269504f;
    ints whole = __builtin_convertvector(scaled + (floats)(((ints)scaled & (int32_t)0x80000000) | (ints)splat(0.5f)), ints);
    floats n = __builtin_convertvector(whole, floats);
    floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
    floats p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (floats)((whole + 127) << 23);
}

/* ---- The team of threads ----------------------------------------------------------------- */

/* A job is a row of phases, and a phase a number of pieces. Members claim pieces, and a phase is over
 * when its pieces are done: not when all members are there, so that one who lost its processor holds
 * up nobody. It finds its phases over when it comes back, and passes through them. */
typedef struct {
    const Model *model;
    Step step;
    struct Scratch *scratch;
    uint32_t first_phase;
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
} Team;

typedef struct {
    Team *team;
    Work work;
    uint32_t phase;
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
    int seen = 0;
    for (;;) {
        for (int spins = 0; spins < 20000 && atomic_load(&team->rounds) == seen; spins++) pause_a_little();
        pthread_mutex_lock(&team->lock);
        while (team->round == seen) pthread_cond_wait(&team->wake, &team->lock);
        seen = team->round;
        Member own = {team, team->work, team->work.first_phase};
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
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->wake, NULL);
    team->size = 1;
    for (int i = 1; team->threads && i < size; i++) {
        if (pthread_create(&team->threads[i], NULL, serve, team)) break; /* then with fewer */
        team->size = i + 1;
    }
    return team;
}

/* ---- Packing and looking up -------------------------------------------------------------- */

enum { KIND_F32 = 0, KIND_F16 = 1, KIND_Q4_0 = 2, KIND_Q4_1 = 3, KIND_Q8_0 = 8 };

static int block_bytes(int kind) { return kind == KIND_Q4_0 ? 18 : kind == KIND_Q4_1 ? 20 : 34; }

/* Pack rows of ggml blocks of `kind`. `order[r]` is the row of `blocks` that becomes row r.
 * rows are a multiple of 16 and cols of 32. */
void stepahead_pack(int32_t kind, int32_t rows, int32_t cols, const uint8_t *blocks,
                    const int32_t *order, uint8_t *quants, uint16_t *scales) {
    int groups = cols / GROUP, size = block_bytes(kind);
    for (int panel = 0; panel < rows / LANES; panel++) {
        for (int lane = 0; lane < LANES; lane++) {
            const uint8_t *row = blocks + (size_t)order[panel * LANES + lane] * groups * size;
            for (int g = 0; g < groups; g++, row += size) {
                size_t place = (size_t)panel * groups + g;
                uint16_t *out = scales + place * 2 * LANES;
                memcpy(out + lane, row, 2);
                if (kind == KIND_Q8_0) {
                    uint8_t *q = quants + place * LANES * GROUP;
                    for (int i = 0; i < GROUP; i++)
                        q[(i / 4 * LANES + lane) * 4 + i % 4] = (uint8_t)(row[2 + i] + 128);
                } else {
                    uint16_t minimum = 0;
                    if (kind == KIND_Q4_1) memcpy(&minimum, row + 2, 2);
                    else minimum = float_to_half(-8.0f * half_to_float(out[lane]));
                    out[LANES + lane] = minimum;
                    uint8_t *q = quants + place * LANES * GROUP / 2;
                    const uint8_t *nibbles = row + size - 16;
                    for (int j = 0; j < 4; j++) memcpy(q + (j * LANES + lane) * 4, nibbles + 4 * j, 4);
                }
            }
        }
    }
}

/* One row of the embedding in float32. */
static void look_up(const Model *model, int token, float *out) {
    int cols = model->hidden, kind = model->embedding_kind;
    if (kind == KIND_F32) {
        memcpy(out, (const float *)model->embedding + (size_t)token * cols, (size_t)cols * 4);
        return;
    }
    if (kind == KIND_F16) {
        const uint16_t *row = (const uint16_t *)model->embedding + (size_t)token * cols;
        for (int i = 0; i < cols; i += LANES) store(out + i, halves_to_floats(row + i));
        return;
    }
    int size = block_bytes(kind), groups = cols / GROUP;
    const uint8_t *row = model->embedding + (size_t)token * groups * size;
    for (int g = 0; g < groups; g++, row += size, out += GROUP) {
        uint16_t half, low = 0;
        memcpy(&half, row, 2);
        float scale = half_to_float(half);
        if (kind == KIND_Q8_0) {
            for (int i = 0; i < GROUP; i++) out[i] = scale * (int8_t)row[2 + i];
            continue;
        }
        if (kind == KIND_Q4_1) memcpy(&low, row + 2, 2);
        float minimum = kind == KIND_Q4_1 ? half_to_float(low) : -8.0f * scale;
        const uint8_t *nibbles = row + size - 16;
        for (int i = 0; i < 16; i++) {
            out[i] = scale * (nibbles[i] & 15) + minimum;
            out[i + 16] = scale * (nibbles[i] >> 4) + minimum;
        }
    }
}

/* ---- Products ---------------------------------------------------------------------------- */

/* Where the scale of a group of a token lies. */
INLINE size_t scale_place(int t, int g, int groups) {
    return ((size_t)(t / TILE) * groups + g) * TILE + t % TILE;
}

#define LEVELS 16256 /* 127 * 128 */

/* Quantise 32 values; group `g` of token `t`. */
INLINE void quantise_group(const float *x, Activations *to, int t, int g) {
    floats part[2] = {load(x), load(x + LANES)};
    float most = largest_of(larger(larger(part[0], -part[0]), larger(part[1], -part[1])));
    float scale = most / LEVELS, inverse = most > 0 ? LEVELS / most : 0.0f;
    int groups = to->cols / GROUP;
    int8_t *q = to->quants + ((size_t)t * groups + g) * 2 * GROUP;
    ints sum = {0};
    UNROLL for (int i = 0; i < 2; i++) {
        floats scaled = part[i] * inverse;
        ints sign = (ints)scaled & (int32_t)0x80000000;
        ints value = __builtin_convertvector(scaled + (floats)(sign | (ints)splat(0.5f)), ints);
        ints high = (value + 64) >> 7;
        *(bytes *)(q + i * LANES) = __builtin_convertvector(high, bytes);
        *(bytes *)(q + GROUP + i * LANES) = __builtin_convertvector(value - (high << 7), bytes);
        sum += value;
    }
    size_t place = scale_place(t, g, groups);
    to->scales[place] = scale;
    to->sums[place] = scale * (float)sum_of_ints(sum);
}

/* The integer product of 16 rows with 4 columns of one token, added to `sum`. */
INLINE ints dot4(ints sum, ints weights, int32_t activations) {
#ifdef HAS_VNNI
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32(activations));
#else
    for (int i = 0; i < 4; i++)
        sum += ((weights >> (8 * i)) & 255) * (int32_t)(int8_t)(activations >> (8 * i));
    return sum;
#endif
}

/* One panel times `count` tokens from `first` on: out[t][16]. `bits` and `count` are constants. */
INLINE void multiply_tile(const Matrix *w, int panel, const Activations *x, int first, const int count,
                          const int bits, float (*out)[LANES]) {
    int groups = w->cols / GROUP;
    size_t place = (size_t)panel * groups;
    const uint8_t *quants = w->quants + place * LANES * GROUP * bits / 8;
    const uint16_t *scales = w->scales + place * 2 * LANES;
    const int8_t *xq = x->quants + (size_t)first * groups * 2 * GROUP;
    const float *xscales = x->scales + scale_place(first, 0, groups);
    const float *xsums = x->sums + scale_place(first, 0, groups);
    floats total[ROWS];
    UNROLL for (int t = 0; t < count; t++) total[t] = splat(0);
    for (int g = 0; g < groups; g++) {
        ints weights[8];
        floats scale = halves_to_floats(scales), minimum;
        if (bits == 4) {
            UNROLL for (int j = 0; j < 4; j++) {
                ints packed = *(const ints *)(quants + 64 * j);
                weights[j] = packed & 0x0f0f0f0f;
                weights[j + 4] = (packed >> 4) & 0x0f0f0f0f;
            }
            minimum = halves_to_floats(scales + LANES);
        } else {
            UNROLL for (int j = 0; j < 8; j++) weights[j] = *(const ints *)(quants + 64 * j);
            minimum = scale * -128.0f;
        }
        UNROLL for (int t = 0; t < count; t++) {
            const word *a = (const word *)(xq + ((size_t)t * groups + g) * 2 * GROUP);
            ints high = {0}, low = {0};
            UNROLL for (int j = 0; j < 8; j++) {
                high = dot4(high, weights[j], a[j]);
                low = dot4(low, weights[j], a[8 + j]);
            }
            ints sum = (high << 7) + low;
            total[t] += __builtin_convertvector(sum, floats) * (scale * xscales[g * TILE + t]);
            total[t] += minimum * xsums[g * TILE + t];
        }
        quants += LANES * GROUP * bits / 8;
        scales += 2 * LANES;
    }
    floats bias = w->bias ? load(w->bias + panel * LANES) : splat(0);
    UNROLL for (int t = 0; t < count; t++) store(out[t], total[t] + bias);
}

#ifdef HAS_AMX
#define HIGH 0
#define LOW 1
#define WEIGHTS 2
#define HIGH_SUMS 3
#define LOW_SUMS 4

typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t widths[16]; /* bytes */
    uint8_t heights[16];
} __attribute__((packed)) TileShapes;

/* Once per thread: 16 tokens by 32 columns, 32 columns by 16 rows, 16 tokens by 16 rows. */
static void shape_tiles(void) {
    TileShapes shapes = {.palette = 1,
                         .widths = {32, 32, 64, 64, 64},
                         .heights = {16, 16, 8, 16, 16}};
    _tile_loadconfig(&shapes);
}

/* The system must be asked before a process uses tiles. */
static int may_use_tiles(void) {
    const int request = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, request, tile_data) == 0;
}

typedef int32_t TileSums[TILE][LANES] __attribute__((aligned(64)));

/* The integer sums of one group, for 16 tokens. */
INLINE void sum_group(const uint8_t *quants, const int8_t *xq, int stride, const int bits, uint8_t *unpacked,
                      TileSums high, TileSums low) {
    if (bits == 4) {
        UNROLL for (int j = 0; j < 4; j++) {
            ints packed = *(const ints *)(quants + 64 * j);
            *(ints *)(unpacked + 64 * j) = packed & 0x0f0f0f0f;
            *(ints *)(unpacked + 64 * (j + 4)) = (packed >> 4) & 0x0f0f0f0f;
        }
        quants = unpacked;
    }
    _tile_loadd(WEIGHTS, quants, 64);
    _tile_loadd(HIGH, xq, stride);
    _tile_loadd(LOW, xq + GROUP, stride);
    _tile_zero(HIGH_SUMS);
    _tile_zero(LOW_SUMS);
    _tile_dpbsud(HIGH_SUMS, HIGH, WEIGHTS);
    _tile_dpbsud(LOW_SUMS, LOW, WEIGHTS);
    _tile_stored(HIGH_SUMS, high, 64);
    _tile_stored(LOW_SUMS, low, 64);
}

/* The same as multiply_tile for 16 tokens, bit for bit: the integer sums are exact. A group's sums
 * are scaled while the next group is multiplied, for a tile's store takes its time. */
INLINE void multiply_tiles(const Matrix *w, int panel, const Activations *x, int first, const int bits,
                           float (*out)[LANES]) {
    int groups = w->cols / GROUP, stride = groups * 2 * GROUP;
    const size_t size = LANES * GROUP * bits / 8;
    size_t place = (size_t)panel * groups;
    const uint8_t *quants = w->quants + place * size;
    const uint16_t *scales = w->scales + place * 2 * LANES;
    const int8_t *xq = x->quants + (size_t)first * stride;
    const float *xscales = x->scales + scale_place(first, 0, groups);
    const float *xsums = x->sums + scale_place(first, 0, groups);
    TileSums high[2], low[2];
    uint8_t unpacked[2][LANES * GROUP] __attribute__((aligned(64)));
    floats total[TILE];
    UNROLL for (int t = 0; t < TILE; t++) total[t] = splat(0);
    sum_group(quants, xq, stride, bits, unpacked[0], high[0], low[0]);
    for (int g = 0; g < groups; g++) {
        if (g + 1 < groups)
            sum_group(quants + (g + 1) * size, xq + (g + 1) * 2 * GROUP, stride, bits, unpacked[(g + 1) & 1],
                      high[(g + 1) & 1], low[(g + 1) & 1]);
        floats scale = halves_to_floats(scales), minimum = scale * -128.0f;
        if (bits == 4) minimum = halves_to_floats(scales + LANES);
        const int32_t(*h)[LANES] = high[g & 1], (*l)[LANES] = low[g & 1];
        UNROLL for (int t = 0; t < TILE; t++) {
            ints sum = (*(const ints *)h[t] << 7) + *(const ints *)l[t];
            total[t] += __builtin_convertvector(sum, floats) * (scale * xscales[g * TILE + t]);
            total[t] += minimum * xsums[g * TILE + t];
        }
        scales += 2 * LANES;
    }
    floats bias = w->bias ? load(w->bias + panel * LANES) : splat(0);
    UNROLL for (int t = 0; t < TILE; t++) store(out[t], total[t] + bias);
}
#endif

#define CASES(bits)                                                                     \
    switch (count < ROWS ? count : ROWS) {                                              \
    case 1: multiply_tile(w, panel, x, first, 1, bits, out); break;                     \
    case 2: multiply_tile(w, panel, x, first, 2, bits, out); break;                     \
    case 3: multiply_tile(w, panel, x, first, 3, bits, out); break;                     \
    case 4: multiply_tile(w, panel, x, first, 4, bits, out); break;                     \
    case 5: multiply_tile(w, panel, x, first, 5, bits, out); break;                     \
    case 6: multiply_tile(w, panel, x, first, 6, bits, out); break;                     \
    case 7: multiply_tile(w, panel, x, first, 7, bits, out); break;                     \
    default: multiply_tile(w, panel, x, first, 8, bits, out); break;                    \
    }

#ifndef HAS_VNNI
#undef CASES
#define CASES(bits) multiply_tile(w, panel, x, first, count < ROWS ? count : ROWS, bits, out);
#endif

/* One panel times up to 16 tokens; there is memory behind them for 16. */
static void multiply(const Matrix *w, int panel, const Activations *x, int first, int count,
                     float (*out)[LANES]) {
#ifdef HAS_AMX
    if (x->uses_tiles && count > 4) {
        if (w->bits == 4) multiply_tiles(w, panel, x, first, 4, out);
        else multiply_tiles(w, panel, x, first, 8, out);
        return;
    }
#endif
    for (; count > 0; first += ROWS, out += ROWS, count -= ROWS) {
        if (w->bits == 4) CASES(4) else CASES(8)
    }
}

INLINE int tile_size(int first, int total) { return total - first < TILE ? total - first : TILE; }

/* ---- The parts of a layer ---------------------------------------------------------------- */

typedef struct Scratch {
    int32_t capacity;           /* tokens */
    float *hidden;              /* [tokens][hidden] */
    float *queries;             /* [tokens][heads * dim] */
    Activations normed, inner;  /* of a layer's inputs, of its feed-forward's middle */
    Activations attended;
    QueryTile *tiles;
    int32_t num_tiles;
    void *memory;
} Scratch;

INLINE float norm_factor(const float *x, int size, float eps) {
    floats squares = splat(0);
    for (int i = 0; i < size; i += LANES) {
        floats v = load(x + i);
        squares += v * v;
    }
    return 1.0f / sqrtf(sum_of(squares) / (float)size + eps);
}

/* Normalise a token and quantise it. */
static void normalise(const float *x, const float *weight, float eps, Activations *to, int t) {
    float factor = norm_factor(x, to->cols, eps);
    float group[GROUP];
    for (int g = 0; g < to->cols / GROUP; g++) {
        const float *from = x + g * GROUP, *scale = weight + g * GROUP;
        store(group, load(from) * factor * load(scale));
        store(group + LANES, load(from + LANES) * factor * load(scale + LANES));
        quantise_group(group, to, t, g);
    }
}

static void normalise_all(Member *own, const float *hidden, const float *weight, Activations *to, int count) {
    const Model *m = own->work.model;
    const int size = 16;
    FOR_PIECES(piece, own, (count + size - 1) / size)
        for (int t = piece * size; t < count && t < (piece + 1) * size; t++)
            normalise(hidden + (size_t)t * m->hidden, weight, m->eps, to, t);
    pass(own);
}

INLINE void rotate(float *head, const float *cosines, const float *sines, int half) {
    for (int i = 0; i < half; i += 8) {
        for (int k = i; k < i + 8 && k < half; k++) {
            float a = head[k], b = head[k + half];
            head[k] = a * cosines[k] - b * sines[k];
            head[k + half] = b * cosines[k] + a * sines[k];
        }
    }
}

/* Where a token's keys and values of one head begin: its block, and its place in it. */
INLINE size_t block_of(const Step *step, int token, int block_size) {
    const int32_t *table = step->tables + (size_t)step->rows[token] * step->table_width;
    return (size_t)table[step->positions[token] / block_size];
}

static void keep_key(const Model *m, const Layer *layer, const Step *step, int token, int kv_head, const float *key) {
    int within = step->positions[token] % m->block_size;
    size_t strip = (block_of(step, token, m->block_size) * m->kv_heads + kv_head) * (m->block_size / LANES) + within / LANES;
    uint16_t *to = layer->keys + strip * m->dim * LANES + within % LANES;
    for (int d = 0; d < m->dim; d++) to[(size_t)d * LANES] = float_to_half(key[d]);
}

static void keep_value(const Model *m, const Layer *layer, const Step *step, int token, int kv_head, const float *value) {
    int within = step->positions[token] % m->block_size;
    size_t row = (block_of(step, token, m->block_size) * m->kv_heads + kv_head) * m->block_size + within;
    uint16_t *to = layer->values + row * m->dim;
    for (int d = 0; d < m->dim; d++) to[d] = float_to_half(value[d]);
}

/* One head of queries, keys or values for every token: product, norm, rotation, and where it belongs. */
static void make_head(const Model *m, const Layer *layer, const Step *step, Scratch *s, int head) {
    int dim = m->dim, panels = dim / LANES;
    int is_query = head < m->heads, is_key = !is_query && head < m->heads + m->kv_heads;
    const float *norm = is_query ? layer->q_norm : is_key ? layer->k_norm : NULL;
    float made[TILE][512] __attribute__((aligned(64))), part[TILE][LANES];
    for (int first = 0; first < step->num_tokens; first += TILE) {
        int count = tile_size(first, step->num_tokens);
        for (int p = 0; p < panels; p++) {
            multiply(&layer->qkv, head * panels + p, &s->normed, first, count, part);
            for (int t = 0; t < count; t++) memcpy(made[t] + p * LANES, part[t], sizeof part[t]);
        }
        for (int t = 0; t < count; t++) {
            int token = first + t;
            float *x = made[t];
            if (norm) {
                float factor = norm_factor(x, dim, m->eps);
                for (int d = 0; d < dim; d++) x[d] *= factor * norm[d];
            }
            if (is_query || is_key) {
                size_t turn = (size_t)step->positions[token] * (dim / 2);
                rotate(x, m->cosines + turn, m->sines + turn, dim / 2);
            }
            if (is_query) memcpy(s->queries + ((size_t)token * m->heads + head) * dim, x, (size_t)dim * 4);
            else if (is_key) keep_key(m, layer, step, token, head - m->heads, x);
            else keep_value(m, layer, step, token, head - m->heads - m->kv_heads, x);
        }
    }
}

/* ---- Attention --------------------------------------------------------------------------- */

typedef struct {
    const float *query[QUERIES];
    int32_t begin[QUERIES], end[QUERIES]; /* positions it sees */
    float out[QUERIES][512];
    float most[QUERIES], total[QUERIES];
    float scores[QUERIES][CHUNK];
} Attending;

/* How many vectors of each of `count` queries are worked on at once, to have twelve under way. */
#define WAYS(count) ((count) <= 3 ? 4 : (count) <= 6 ? 2 : 1)

/* Scores of `count` queries for the positions of `ways` strips of keys. */
INLINE void score_strips(const uint16_t *const *keys, int dim, int at, Attending *a, const int count, const int ways) {
    floats sums[QUERIES];
    UNROLL for (int i = 0; i < count * ways; i++) sums[i] = splat(0);
    for (int d = 0; d < dim; d++) {
        UNROLL for (int way = 0; way < ways; way++) {
            floats k = halves_to_floats(keys[way] + (size_t)d * LANES);
            UNROLL for (int q = 0; q < count; q++) sums[q * ways + way] += k * a->query[q][d];
        }
    }
    UNROLL for (int i = 0; i < count * ways; i++)
        store(a->scores[i / ways] + at + i % ways * LANES, sums[i]);
}

/* For a constant number of queries. */
INLINE void score_keys(const uint16_t *const *keys, int strips, int dim, Attending *a, const int count) {
    int i = 0;
    for (; i + WAYS(count) <= strips; i += WAYS(count)) score_strips(keys + i, dim, i * LANES, a, count, WAYS(count));
    for (; i < strips; i++) score_strips(keys + i, dim, i * LANES, a, count, 1);
}

/* out[q][16 * ways of dim] += weights[q][positions] * values[positions][...]. */
INLINE void weigh_lanes(const uint16_t *const *values, int positions, int lane, Attending *a,
                        const int count, const int ways) {
    floats sums[QUERIES];
    UNROLL for (int i = 0; i < count * ways; i++) sums[i] = load(a->out[i / ways] + lane + i % ways * LANES);
    for (int p = 0; p < positions; p++) {
        UNROLL for (int way = 0; way < ways; way++) {
            floats v = halves_to_floats(values[p] + lane + way * LANES);
            UNROLL for (int q = 0; q < count; q++) sums[q * ways + way] += v * a->scores[q][p];
        }
    }
    UNROLL for (int i = 0; i < count * ways; i++) store(a->out[i / ways] + lane + i % ways * LANES, sums[i]);
}

/* For a constant number of queries. */
INLINE void weigh_values(const uint16_t *const *values, int positions, int dim, Attending *a, const int count) {
    int lane = 0;
    for (; lane + WAYS(count) * LANES <= dim; lane += WAYS(count) * LANES)
        weigh_lanes(values, positions, lane, a, count, WAYS(count));
    for (; lane < dim; lane += LANES) weigh_lanes(values, positions, lane, a, count, 1);
}

#define FOR_COUNT(call)                                                                  \
    switch (count) {                                                                     \
        EACH(1, call) EACH(2, call) EACH(3, call) EACH(4, call) EACH(5, call)            \
        EACH(6, call) EACH(7, call) EACH(8, call) EACH(9, call) EACH(10, call)           \
        EACH(11, call)                                                                   \
    default: call(QUERIES); break;                                                       \
    }
#define EACH(n, call) case n: call(n); break;
#ifndef HAS_VNNI
#undef FOR_COUNT
#define FOR_COUNT(call) call(count);
#endif

static void score(const uint16_t *const *keys, int strips, int dim, Attending *a, int count) {
#define SCORE(n) score_keys(keys, strips, dim, a, n)
    FOR_COUNT(SCORE)
}

static void weigh(const uint16_t *const *values, int positions, int dim, Attending *a, int count) {
#define WEIGH(n) weigh_values(values, positions, dim, a, n)
    FOR_COUNT(WEIGH)
}

/* From scores to weights, with what was summed before brought to the new maximum. */
INLINE void soften(const Model *m, Attending *a, int q, int base, int positions) {
    float *scores = a->scores[q];
    floats most = splat(-INFINITY);
    for (int p = 0; p < positions; p += LANES) {
        floats s = load(scores + p) * m->scale;
        if (base + p < a->begin[q] || base + p + LANES > a->end[q])
            for (int i = 0; i < LANES; i++)
                if (base + p + i < a->begin[q] || base + p + i >= a->end[q]) s[i] = -INFINITY;
        store(scores + p, s);
        most = larger(most, s);
    }
    float best = largest_of(most);
    if (best == -INFINITY) {
        memset(scores, 0, (size_t)positions * 4);
        return;
    }
    if (best > a->most[q]) {
        float shrink = expf(a->most[q] - best);
        a->total[q] *= shrink;
        for (int d = 0; d < m->dim; d += LANES) store(a->out[q] + d, load(a->out[q] + d) * shrink);
        a->most[q] = best;
    }
    floats total = splat(0);
    for (int p = 0; p < positions; p += LANES) {
        floats s = load(scores + p), weights = exp_of(s - a->most[q]);
        weights = (floats)((ints)weights & (s > splat(-INFINITY)));
        store(scores + p, weights);
        total += weights;
    }
    a->total[q] += sum_of(total);
}

/* One key head for a tile of tokens of one row, quantised into `attended`. */
static void attend(const Model *m, const Layer *layer, const Step *step, Scratch *s, const QueryTile *tile, int kv_head) {
    Attending a;
    int group = m->heads / m->kv_heads, count = 0, least = 1 << 30, last = 0;
    for (int t = tile->first; t < tile->first + tile->count; t++) {
        int end = step->positions[t] + 1;
        int begin = layer->window && end > layer->window ? end - layer->window : 0;
        least = begin < least ? begin : least;
        last = end > last ? end : last;
        for (int h = 0; h < group; h++, count++) {
            a.query[count] = s->queries + ((size_t)t * m->heads + kv_head * group + h) * m->dim;
            a.begin[count] = begin;
            a.end[count] = end;
            a.most[count] = -INFINITY;
            a.total[count] = 0;
            memset(a.out[count], 0, (size_t)m->dim * 4);
        }
    }
    const int32_t *table = step->tables + (size_t)tile->row * step->table_width;
    int size = m->block_size;
    for (int base = least / LANES * LANES; base < last; base += CHUNK) {
        int positions = 0;
        const uint16_t *keys[CHUNK / LANES], *values[CHUNK];
        for (; positions < CHUNK && base + positions < last; positions += LANES) {
            int position = base + positions;
            size_t head = (size_t)table[position / size] * m->kv_heads + kv_head;
            int within = position % size;
            keys[positions / LANES] = layer->keys + (head * (size / LANES) + within / LANES) * m->dim * LANES;
            for (int i = 0; i < LANES; i++) values[positions + i] = layer->values + (head * size + within + i) * m->dim;
        }
        score(keys, positions / LANES, m->dim, &a, count);
        for (int q = 0; q < count; q++) soften(m, &a, q, base, positions);
        int seen = last - base < positions ? last - base : positions; /* what lies behind is not written */
        weigh(values, seen, m->dim, &a, count);
    }
    for (int q = 0; q < count; q++) {
        float share = 1.0f / a.total[q];
        for (int d = 0; d < m->dim; d += LANES) store(a.out[q] + d, load(a.out[q] + d) * share);
        int t = tile->first + q / group, head = kv_head * group + q % group;
        for (int g = 0; g < m->dim / GROUP; g++)
            quantise_group(a.out[q] + g * GROUP, &s->attended, t, head * (m->dim / GROUP) + g);
    }
}

/* ---- A step ------------------------------------------------------------------------------ */

/* hidden += x times the matrix. */
static void add_product(Member *own, const Matrix *w, const Activations *x, float *hidden, int count) {
    float part[TILE][LANES];
    FOR_PIECES(panel, own, w->rows / LANES) {
        for (int first = 0; first < count; first += TILE) {
            int size = tile_size(first, count);
            multiply(w, panel, x, first, size, part);
            for (int t = 0; t < size; t++) {
                float *to = hidden + (size_t)(first + t) * w->rows + panel * LANES;
                store(to, load(to) + load(part[t]));
            }
        }
    }
    pass(own);
}

/* silu(gate) * up for 32 columns at once, quantised as the input of `down`. */
static void gate_up(Member *own, const Matrix *w, const Activations *x, Activations *to, int count) {
    float gate[2][TILE][LANES], up[2][TILE][LANES], group[GROUP];
    FOR_PIECES(g, own, to->cols / GROUP) {
        for (int first = 0; first < count; first += TILE) {
            int size = tile_size(first, count);
            for (int i = 0; i < 2; i++) {
                multiply(w, 4 * g + i, x, first, size, gate[i]);
                multiply(w, 4 * g + 2 + i, x, first, size, up[i]);
            }
            for (int t = 0; t < size; t++) {
                for (int i = 0; i < 2; i++) {
                    floats v = load(gate[i][t]);
                    store(group + i * LANES, v / (exp_of(-v) + 1.0f) * load(up[i][t]));
                }
                quantise_group(group, to, first + t, g);
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
            int lanes = vocab - panel * LANES < LANES ? vocab - panel * LANES : LANES;
            for (int first = 0; first < count; first += TILE) {
                int size = tile_size(first, count);
                multiply(w, panel, x, first, size, part);
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
    normalise_all(own, s->hidden, layer->input_norm, &s->normed, count);
    FOR_PIECES(head, own, m->heads + 2 * m->kv_heads) make_head(m, layer, step, s, head);
    pass(own);
    FOR_PIECES(task, own, tiles * m->kv_heads)
        attend(m, layer, step, s, s->tiles + task / m->kv_heads, task % m->kv_heads);
    pass(own);
    add_product(own, &layer->out, &s->attended, s->hidden, count);
    normalise_all(own, s->hidden, layer->mlp_norm, &s->normed, count);
    gate_up(own, &layer->gate_up, &s->normed, &s->inner, count);
    add_product(own, &layer->down, &s->inner, s->hidden, count);
}

static void forward(Member *own) {
    const Model *m = own->work.model;
    const Step *step = &own->work.step;
    Scratch *s = own->work.scratch;
#ifdef HAS_AMX
    if (s->normed.uses_tiles) shape_tiles();
#endif
    FOR_PIECES(t, own, step->num_tokens) look_up(m, step->tokens[t], s->hidden + (size_t)t * m->hidden);
    pass(own);
    for (int number = 0; number < m->num_layers; number++) run_layer(own, m->layers + number);
    if (step->num_wanted) {
        FOR_PIECES(t, own, step->num_wanted)
            normalise(s->hidden + (size_t)step->wanted[t] * m->hidden, m->norm, m->eps, &s->normed, t);
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

static size_t lay_out(Scratch *s, const Model *m, int tokens, char *base) {
    char *at = base;
    s->capacity = tokens;
    s->hidden = take(&at, (size_t)tokens * m->hidden * 4);
    s->queries = take(&at, (size_t)tokens * m->heads * m->dim * 4);
    take_activations(&s->normed, &at, tokens, m->hidden);
    take_activations(&s->attended, &at, tokens, m->heads * m->dim);
    take_activations(&s->inner, &at, tokens, m->inner);
    s->tiles = take(&at, (size_t)tokens * sizeof *s->tiles);
    return (size_t)(at - base);
}

Scratch *stepahead_scratch_new(void) { return calloc(1, sizeof(Scratch)); }

void stepahead_scratch_free(Scratch *s) {
    if (s) free(s->memory);
    free(s);
}

static int make_room(Scratch *s, const Model *m, int tokens) {
    tokens = (tokens + TILE - 1) / TILE * TILE;
    if (tokens <= s->capacity) return 0;
    free(s->memory);
    s->memory = NULL;
    size_t size = lay_out(s, m, tokens, (char *)64);
    if (posix_memalign(&s->memory, 64, size)) {
        s->memory = NULL;
        s->capacity = 0;
        return -1;
    }
    lay_out(s, m, tokens, s->memory);
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

/* Compute a step; 0, or -1 where memory does not suffice. */
int32_t stepahead_forward(Team *team, Scratch *s, const Model *model, const Step *step) {
    if (make_room(s, model, step->num_tokens)) return -1;
    make_tiles(s, model, step);
    Work work = {model, *step, s, (uint32_t)(atomic_load(&team->state) >> 32)};
    if (team->size > 1) begin_round(team, &work);
    Member own = {team, work, work.first_phase};
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
