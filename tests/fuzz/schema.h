/* Schemas for the targets that parse: of a catalogue, or out of the input. */
#ifndef SR_FUZZ_SCHEMA_H
#define SR_FUZZ_SCHEMA_H

#include "examples.h"
#include "input.h"

enum { MOST_FEATURES = 14, MOST_LISTS = 6, MOST_PLANS = MOST_FEATURES + MOST_LISTS, LONGEST_NAME = 32 };

struct drawn_schema {
    struct sr_schema schema;
    struct sr_plan plans[MOST_PLANS];
    const uint8_t *names[MOST_PLANS]; /* in memory of just their sizes */
    uint32_t name_sizes[MOST_PLANS];
};

/* A schema as the glue lets it pass: is_valid in streamrec/kernel/c/module.c. */
void draw_schema(struct drawn_schema *drawn, struct input *input, bool is_sequence);

/* Look a name up that may be there. */
void check_names(const struct drawn_schema *drawn, struct input *input);

/* The same names, each with any number of values: what the columns of other kinds are held against. */
void loosen_schema(struct drawn_schema *loose, const struct drawn_schema *drawn);

void free_schema(struct drawn_schema *drawn);

/* Bytes of one value in a column. */
static inline size_t width_of(const struct sr_plan *plan) {
    return plan->type == SR_INTS ? 8 : plan->type == SR_FLOATS ? 4 : 1;
}

#endif
