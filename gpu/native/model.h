/* What a model and a step are made of. library.py declares Matrix to Plan once more.
 *
 * Weights are packed in panels of 16 output rows, groups of 32 input columns one after the other:
 *
 *   quants  4 bits: [panel][group][4][16 rows][4]   a byte holds column 4j+i (low) and 4j+i+16
 *           8 bits: [panel][group][8][16 rows][4]   the value plus 128
 *   scales  [panel][group][2][16 rows] float16      value = scale * quant + minimum
 *                                                   (8 bits: the minimum is -128 * scale, not kept)
 *
 * so that lane r of a vector belongs to row r and no sum ever crosses lanes.
 *
 * Activations of many tokens are in bfloat16 where the processor has matrix tiles. Else, and for few
 * tokens, they are in groups of 32 with a scale each: as words of 16 bits, or, where the processor
 * multiplies bytes in groups of four, as two planes of 8 bits, high and low. With one plane alone, 2
 * to 3% of the most likely next tokens differ from those of float32. Beside 4-bit weights the high
 * plane counts 16 times, so that both can be summed as one (the weights times 16 still fit a byte);
 * beside 8-bit weights it counts 128 times.
 *
 * Keys lie in their block as
 * [kv_head][position / 16][dim][16 positions], values as [kv_head][position][dim], both float16.
 */
#pragma once
#include "numerics.h"

#define GROUP 32 /* columns that share a scale */
#define TILE 16  /* tokens of a matrix tile */
#define BATCH 32 /* tokens that are multiplied at once */
#define BLOCK 512 /* tokens that panel after panel is multiplied with, or half of it for more columns than: */
#define BLOCK_COLS 768

typedef uint16_t Bfloat;
typedef uint16_t Unpacked; /* a weight, unpacked for many tokens: a Bfloat, or an integer */
typedef enum { PLANES_4, PLANES_8, TILES, WORDS, UNPACKED_WORDS } Form;

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
    int32_t most_planes; /* tokens for which tiles do not pay; -1: any number, as weights are too large */
    float eps, scale;
    const float *cosines, *sines; /* [positions][dim / 2] */
    const uint8_t *embedding;     /* rows as `embedding_kind` packs them */
    int32_t embedding_kind;       /* ggml's number: 0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 8 Q8_0 */
    const float *norm;
    Matrix head;
    const Layer *layers;
} Model;

/* A step as it is asked for: its rows, and the tables of all slots. Told of each place that is sampled
 * are its logits, or, where that is null, the likeliest token. */
typedef struct {
    int32_t num_rows, num_slots, token_width, table_width;
    const int64_t *slots;            /* [num_rows] */
    const int32_t *starts, *lengths; /* [num_rows] the positions of a row */
    const uint8_t *samples;          /* [num_rows] whether it samples behind its last token, */
    const int32_t *drafts;           /* [num_rows] and how many before that; or null */
    const int32_t *tokens;           /* [num_slots][token_width] by position */
    const int32_t *tables;           /* [num_slots][table_width] block ids */
    float *logits;                   /* [places][vocab] or null */
    int32_t *likeliest;              /* [places] */
} Plan;

/* A step as it is computed, token by token. */
typedef struct {
    int32_t num_tokens, num_wanted, table_width;
    const int32_t *tokens, *positions; /* [num_tokens] */
    const int32_t *rows;               /* [num_tokens] the row of `tables` of each token */
    const int32_t *tables;             /* [rows][table_width] block ids */
    const int32_t *wanted;             /* [num_wanted] tokens whose logits are wanted */
    float *logits;                     /* [num_wanted][vocab], or null where the likeliest will do: */
    struct Best *best;                 /* [members][num_wanted], at first -INFINITY */
} Step;

/* The likeliest of the tokens that a member looked at, the first of equal ones; NaN where any is. */
typedef struct Best {
    float logit;
    int32_t token;
} Best;

/* In planes: value = scale * (16 or 128 * high + low); in words: scale * word. `sums` is the sum of a
 * group's values. */
typedef struct {
    union {
        int8_t *quants;  /* [tokens][groups][2][32], high and low */
        Bfloat *bfloats; /* [tokens / 16][groups][16][32] */
        int16_t *words;  /* [tokens][groups][32] */
    };
    float *scales, *sums;  /* [tokens / 16][groups][16], so that a tile's lie together */
    int32_t cols;
    int32_t most_planes; /* tokens that are kept in planes; -1: any number */
} Activations;

/* Where the scale of a group of a token lies. */
INLINE size_t scale_place(int t, int g, int groups) {
    return ((size_t)(t / TILE) * groups + g) * TILE + t % TILE;
}

/* Tokens that attend to the positions up to `end` of a row together. */
typedef struct {
    const int32_t *tokens;
    int32_t count, row, end;
    int32_t goes_on; /* what is found is not all: each token sees more, of its own */
} Span;

/* What a query row has found so far: its highest score, and the sum of the weights beside that. */
typedef struct {
    float most, total;
} Partial;

typedef struct Scratch {
    int32_t capacity;           /* tokens */
    int32_t *tokens, *positions, *rows, *wanted; /* [tokens] of the step */
    Best *best;                 /* [members][tokens] */
    float *hidden;              /* [tokens][hidden] */
    float *queries;             /* [tokens][heads * dim] */
    Activations normed, inner;  /* of a layer's inputs, of its feed-forward's middle */
    Activations attended;
    Span *tiles, *spans;        /* of few and of many tokens of one row */
    Span *shared;               /* of rows that share a prefix */
    int32_t *order, *sharers;   /* [tokens] all of them; those of `shared` */
    int32_t *seen;              /* [tokens] positions that a token has attended to in `shared` */
    Partial *partials;          /* [tokens][heads] and what was found there */
    float *partial_out;         /* [tokens][heads][dim] */
    Unpacked *unpacked;         /* [members][most_unpacked] */
    size_t most_unpacked;
    int32_t num_tiles, num_spans, num_shared, num_sharers;
    void *memory;
} Scratch;
