/* From a plan to the step that computes it, and from what the members found to what the plan is told. */
#pragma once
#include "model.h"

enum { NOT_NUMBERS = -1, NONE_LEFT = -2 };

/* Whether a row lies within the tables. The last column of tokens is for what is sampled alone. */
static int has_row(const Plan *plan, int row) {
    int start = plan->starts[row], length = plan->lengths[row];
    return plan->slots[row] >= 0 && plan->slots[row] < plan->num_slots && start >= 0 && length > 0 &&
           length < plan->token_width - start && (!plan->drafts || plan->drafts[row] < length);
}

/* Of all rows; -1 where one lies outside. */
static int count_tokens(const Plan *plan) {
    int count = 0;
    for (int row = 0; row < plan->num_rows; row++) {
        if (!has_row(plan, row)) return -1;
        count += plan->lengths[row];
    }
    return count;
}

/* Every position of every row, in planning order. Wanted are the last token of each row that samples, and
 * as many before it as the row has drafts. */
static Step expand(const Plan *plan, Scratch *s) {
    int count = 0, wanted = 0;
    for (int row = 0; row < plan->num_rows; row++) {
        int slot = (int)plan->slots[row], position = plan->starts[row], end = position + plan->lengths[row];
        const int32_t *known = plan->tokens + (size_t)slot * plan->token_width;
        for (; position < end; position++, count++) {
            s->tokens[count] = known[position];
            s->positions[count] = position;
            s->rows[count] = slot;
        }
        if (!plan->samples[row]) continue;
        for (int before = plan->drafts ? plan->drafts[row] : 0; before >= 0; before--)
            s->wanted[wanted++] = count - 1 - before;
    }
    return (Step){.num_tokens = count, .tokens = s->tokens, .positions = s->positions, .rows = s->rows,
                  .tables = plan->tables, .table_width = plan->table_width, .num_wanted = wanted,
                  .wanted = s->wanted, .logits = plan->logits, .best = s->best};
}

static void forget_best(const Step *step, int members) {
    for (int i = 0; i < members * step->num_wanted; i++) step->best[i] = (Best){-INFINITY, 0};
}

static int is_better(Best a, Best b) {
    if (b.logit != b.logit) return 0;
    return !(a.logit <= b.logit) || (a.logit == b.logit && a.token < b.token);
}

/* Its token, or, as row_failures.py numbers them, why there is none. */
static int32_t usable(Best best) {
    if (best.logit == -INFINITY) return NONE_LEFT;
    return best.logit < INFINITY ? best.token : NOT_NUMBERS;
}

/* The best of what all members found. */
static void tell_best(const Step *step, int members, const Plan *plan) {
    for (int i = 0; i < step->num_wanted; i++) {
        Best best = step->best[i];
        for (int at = i + step->num_wanted; at < members * step->num_wanted; at += step->num_wanted)
            if (is_better(step->best[at], best)) best = step->best[at];
        plan->likeliest[i] = usable(best);
    }
}
