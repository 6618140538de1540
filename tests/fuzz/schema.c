#include "schema.h"

#include "compose.h"

/* Every kind, type and default once. The names are those of compose.c, by their numbers. */
static const struct catalogued {
    uint8_t name;
    enum sr_kind kind;
    enum sr_type type;
    int64_t count;
    bool may_lack;
} CATALOGUE[MOST_FEATURES] = {
    {0, SR_FIXED, SR_INTS, 1, false},     {1, SR_FIXED, SR_FLOATS, 2, true},    {2, SR_FIXED, SR_STRINGS, 1, false},
    {3, SR_VARLEN, SR_INTS, 0, false},    {4, SR_VARLEN, SR_STRINGS, 0, false}, {5, SR_FIXED, SR_INTS, 1, true},
    {6, SR_FIXED, SR_INTS, 70, true},     {7, SR_VARLEN, SR_FLOATS, 0, false},  {8, SR_FIXED, SR_STRINGS, 3, true},
    {9, SR_FIXED, SR_FLOATS, 2, false},   {10, SR_RAW, SR_STRINGS, 8, true},    {11, SR_RAW, SR_STRINGS, 4, false},
    {12, SR_FIXED, SR_STRINGS, 0, false}, {13, SR_FIXED, SR_INTS, 3, false},
};

static bool has_count(const struct sr_plan *plan) { return plan->kind == SR_FIXED || plan->kind == SR_RAW; }

/* The default's values, in memory of just their size. */
static void give_default(struct sr_plan *plan) {
    const bool is_strings = plan->kind == SR_FIXED && plan->type == SR_STRINGS;
    int64_t *ends = exactly_items(is_strings ? plan->count : 0, sizeof *ends);
    int64_t size = has_count(plan) ? plan->count * (int64_t)width_of(plan) : 0;
    if (is_strings) {
        size = 0;
        for (int64_t k = 0; k < plan->count; k++) ends[k] = size += k % 3;
    }
    uint8_t *values = exactly_items(size, 1);
    for (int64_t k = 0; k < size; k++) values[k] = (uint8_t)(0xa0 + k);
    plan->values = values;
    plan->values_size = size;
    plan->ends = ends;
}

static void add_plan(struct drawn_schema *drawn, struct sr_plan plan, const uint8_t *name, size_t size,
                     uint32_t first) {
    struct sr_schema *schema = &drawn->schema;
    const uint32_t number = schema->features + schema->lists;
    for (uint32_t k = first; k < number; k++) /* no two have the same name */
        if (drawn->name_sizes[k] == size && !memcmp(drawn->names[k], name, size)) return;
    if (!has_count(&plan)) plan.count = 0;
    plan.may_lack = plan.may_lack && plan.kind != SR_VARLEN;
    if (plan.may_lack) give_default(&plan);
    drawn->plans[number] = plan;
    drawn->names[number] = copy_of(name, size);
    drawn->name_sizes[number] = (uint32_t)size;
    if (plan.kind == SR_STEPS)
        schema->lists++;
    else
        schema->features++;
}

static size_t draw_name(uint8_t name[LONGEST_NAME], struct input *input) {
    const uint8_t choice = take_byte(input);
    size_t size = choice & 31;
    if (choice < 0xe0) {
        const char *known = NAMES[choice % NAME_COUNT];
        memcpy(name, known, size = strlen(known));
    } else {
        for (size_t k = 0; k < size; k++) name[k] = take_byte(input) & 127;
    }
    return size;
}

static int64_t draw_count(struct input *input) {
    const uint8_t choice = take_byte(input);
    return choice < 0xf0 ? choice % 10 : 60 + (choice & 15);
}

static void draw_plans(struct drawn_schema *drawn, struct input *input, uint64_t most, bool are_lists) {
    const uint32_t first = are_lists ? drawn->schema.features : 0;
    for (uint64_t left = take_below(input, most + 1); left; left--) {
        const uint8_t choice = take_byte(input);
        struct sr_plan plan = {.type = SR_STRINGS + (choice & 15) % 3, .may_lack = choice >> 4 & 1};
        plan.kind = are_lists ? SR_STEPS : (enum sr_kind)((choice >> 5) % 3);
        if (plan.kind == SR_RAW) plan.type = SR_STRINGS;
        if (has_count(&plan)) plan.count = draw_count(input);
        uint8_t name[LONGEST_NAME] = {0};
        add_plan(drawn, plan, name, draw_name(name, input), first);
    }
}

static void take_catalogued(struct drawn_schema *drawn, struct input *input, bool is_sequence) {
    const uint64_t wanted = take_number(input, 2);
    for (int k = 0; k < MOST_FEATURES; k++) {
        const struct catalogued *entry = &CATALOGUE[k];
        const char *name = NAMES[entry->name];
        const struct sr_plan plan = {entry->kind, entry->type, entry->count, entry->may_lack, NULL, 0, NULL};
        if (wanted >> k & 1) add_plan(drawn, plan, (const uint8_t *)name, strlen(name), 0);
    }
    const uint8_t wanted_lists = is_sequence ? take_byte(input) : 0;
    const uint32_t first = drawn->schema.features;
    for (int k = 0; k < MOST_LISTS; k++) { /* the types as tests/kernel/wire_bytes.py writes them */
        static const enum sr_type types[MOST_LISTS] = {SR_INTS, SR_FLOATS, SR_STRINGS, SR_INTS, SR_STRINGS, SR_FLOATS};
        const struct sr_plan plan = {.kind = SR_STEPS, .type = types[k], .may_lack = k != 0};
        if (wanted_lists >> k & 1) add_plan(drawn, plan, (const uint8_t *)NAMES[k], strlen(NAMES[k]), first);
    }
}

static void refer(struct drawn_schema *drawn) {
    struct sr_schema *schema = &drawn->schema;
    schema->plans = drawn->plans;
    CHECK(sr_names_init(&schema->feature_names, schema->features));
    CHECK(sr_names_init(&schema->list_names, schema->lists));
    for (uint32_t k = 0; k < schema->features + schema->lists; k++) {
        struct sr_names *names = k < schema->features ? &schema->feature_names : &schema->list_names;
        sr_names_add(names, drawn->names[k], drawn->name_sizes[k]);
    }
}

void draw_schema(struct drawn_schema *drawn, struct input *input, bool is_sequence) {
    memset(drawn, 0, sizeof *drawn);
    drawn->schema.is_sequence = is_sequence;
    if (take_bool(input)) {
        take_catalogued(drawn, input, is_sequence);
    } else {
        draw_plans(drawn, input, MOST_FEATURES, false);
        if (is_sequence) draw_plans(drawn, input, MOST_LISTS, true);
    }
    refer(drawn);
}

/* The number of a name among those of the plans from `first` on, or -1. */
static int64_t find_singly(const struct drawn_schema *drawn, uint32_t first, uint32_t count, const uint8_t *text,
                           size_t size) {
    for (uint32_t k = 0; k < count; k++)
        if (drawn->name_sizes[first + k] == size && !memcmp(drawn->names[first + k], text, size)) return k;
    return -1;
}

void check_names(const struct drawn_schema *drawn, struct input *input) {
    const struct sr_schema *schema = &drawn->schema;
    const uint32_t count = schema->features + schema->lists;
    const uint8_t choice = take_byte(input);
    const uint32_t likely = choice < 0xf0 ? choice & 15 : UINT32_MAX;
    uint8_t name[LONGEST_NAME] = {0};
    size_t size = draw_name(name, input);
    if (choice & 16 && count) { /* one that differs from a plan's in one byte, or in none */
        const uint32_t number = (uint32_t)take_below(input, count);
        size = drawn->name_sizes[number];
        if (size) memcpy(name, drawn->names[number], size);
        if (size && choice & 32) name[take_below(input, size)] ^= 1;
    }
    uint8_t *text = copy_of(name, size);
    CHECK(sr_names_find(&schema->feature_names, text, (uint32_t)size, likely) ==
          find_singly(drawn, 0, schema->features, text, size));
    CHECK(sr_names_find(&schema->list_names, text, (uint32_t)size, likely) ==
          find_singly(drawn, schema->features, schema->lists, text, size));
    free(text);
}

void loosen_schema(struct drawn_schema *loose, const struct drawn_schema *drawn) {
    memset(loose, 0, sizeof *loose);
    loose->schema.is_sequence = drawn->schema.is_sequence;
    for (uint32_t k = 0; k < drawn->schema.features + drawn->schema.lists; k++) {
        struct sr_plan plan = drawn->plans[k];
        if (plan.kind != SR_STEPS) plan = (struct sr_plan){.kind = SR_VARLEN, .type = plan.type};
        const uint32_t first = plan.kind == SR_STEPS ? loose->schema.features : 0;
        add_plan(loose, plan, drawn->names[k], drawn->name_sizes[k], first);
    }
    refer(loose);
}

void free_schema(struct drawn_schema *drawn) {
    for (uint32_t k = 0; k < drawn->schema.features + drawn->schema.lists; k++) {
        free((void *)drawn->names[k]);
        free((void *)drawn->plans[k].values);
        free((void *)drawn->plans[k].ends);
    }
    sr_names_free(&drawn->schema.feature_names);
    sr_names_free(&drawn->schema.list_names);
}
