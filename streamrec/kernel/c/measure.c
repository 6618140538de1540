#include <stdlib.h>

#include "examples.h"
#include "feature.h"
#include "likely.h"
#include "packed.h"

/* The longest serialized message: streamrec.kernel.contract.LARGEST_MESSAGE. It makes offsets in a
   record fit 31 bits. */
#define LARGEST_MESSAGE INT32_MAX

/* The record's fields. */
enum { FEATURES = SR_TAG(1, SR_DELIMITED), FEATURE_LISTS = SR_TAG(2, SR_DELIMITED) };

/* What the record has of a plan so far: nothing, what it needs, or an sr_fault. */
enum { ABSENT = 0, PRESENT = 1 };

struct found {
    struct sr_span span;
    struct sr_size size;
    int64_t steps;
};

struct measuring {
    const struct sr_schema *schema;
    struct sr_column *columns;
    int64_t row;
    const uint8_t *record, *record_end;
    const uint8_t *field;  /* the one that is being read, for errors */
    uint8_t *states;       /* of the plans, in this record */
    uint8_t *all_present;  /* what they are where nothing is wrong */
    struct found *found;   /* of the plans that are filled later */
    uint32_t *filled;      /* their numbers */
    uint32_t filled_count;
    struct sr_likely *likely; /* the features' likely forms */
    uint32_t *successors;  /* the plan whose name came after this one's; [features] is the first's */
    uint32_t previous;     /* the plan whose name came last */
};

static uint8_t *slot(const struct measuring *self, uint32_t number, int64_t row_size) {
    return self->columns[number].values + self->row * row_size;
}

static int64_t row_size(const struct sr_plan *plan) {
    return plan->kind == SR_RAW ? plan->count : plan->count * (plan->type == SR_INTS ? 8 : 4);
}

/* The common form of a list: its values in one piece, which is all of it. Returns where it begins. */
static inline const uint8_t *single_piece(const uint8_t *at, const uint8_t *end) {
    struct sr_field field;
    return sr_read_field(at, end, 0, &field) == end && field.tag == SR_TAG(1, SR_DELIMITED) ? field.value : NULL;
}

/* A varint that takes up exactly the bytes before `end`, of a record in which a word may be read. */
static inline bool decode_one(const struct measuring *self, const uint8_t *at, uint32_t size, uint64_t *value) {
    if (SR_LIKELY(size <= 8 && size && self->record_end - at >= 8)) {
        const uint64_t word = sr_load64(at), ends = ~word & SR_TOP_BITS;
        *value = sr_varint_of_word(word, size);
        return ends && (unsigned)__builtin_ctzll(ends) == 8 * size - 1;
    }
    return sr_read_varint(at, at + size, value) == at + size;
}

static bool decode_ints(const struct measuring *self, const uint8_t *at, uint32_t size, int64_t count, int64_t *out) {
    if (count == 1) return decode_one(self, at, size, (uint64_t *)out);
    return sr_decode_packed(at, at + size, out, out + count) == out + count;
}

/* Decode a list in its common form to its place; false where it has another one, or does not fit. */
static inline bool decode_directly(const struct measuring *self, uint32_t number, const uint8_t *at, const uint8_t *end) {
    const struct sr_plan *plan = &self->schema->plans[number];
    if (!self->columns[number].values || !(at = single_piece(at, end))) return false;
    const uint32_t size = (uint32_t)(end - at);
    uint8_t *out = slot(self, number, row_size(plan));
    if (plan->type == SR_INTS) return decode_ints(self, at, size, plan->count, (int64_t *)(void *)out);
    if ((int64_t)size != row_size(plan)) return false;
    sr_copy(out, at, size);
    return true;
}

static uint8_t judge(const struct sr_plan *plan, enum sr_type type, struct sr_size size) {
    if (type == SR_NO_LIST) return ABSENT;
    if (type != plan->type) return SR_WRONG_KIND;
    if (plan->kind == SR_FIXED) return size.values == plan->count ? PRESENT : SR_WRONG_COUNT;
    if (plan->kind != SR_RAW) return PRESENT;
    return size.values != 1 ? SR_WRONG_COUNT : size.bytes == plan->count ? PRESENT : SR_WRONG_SIZE;
}

static struct sr_span span_of(const struct measuring *self, const uint8_t *begin, const uint8_t *end, uint32_t flag) {
    return (struct sr_span){(uint32_t)(begin - self->record) | flag, (uint32_t)(end - self->record)};
}

/* Decode a feature of any form to its place. */
static void decode_slowly(const struct measuring *self, uint32_t number, const uint8_t *at, const uint8_t *end,
                          const struct sr_feature *feature) {
    const int64_t size = row_size(&self->schema->plans[number]);
    uint8_t *out = slot(self, number, size);
    int64_t ends[1];
    struct sr_sink sink = {out, out + size, ends, ends + 1, 0};
    sr_decode_entry(at, end, feature, &sink);
}

/* Take a feature of any form that may be given in parts. */
static bool take_entry(struct measuring *self, uint32_t number, const uint8_t *at, const uint8_t *end) {
    const struct sr_plan *plan = &self->schema->plans[number];
    struct sr_feature feature = {SR_NO_LIST, {0, 0}, 0, 0};
    if (!sr_measure_entry(at, end, &feature)) return false;
    self->states[number] = judge(plan, feature.type, feature.size);
    if (!sr_is_direct(plan))
        self->found[number] = (struct found){span_of(self, at, end, SR_IS_ENTRY), feature.size, 0};
    else if (self->states[number] == PRESENT && self->columns[number].values)
        decode_slowly(self, number, at, end, &feature);
    return true;
}

/* Take a feature that is one list, which is `at` to `end`. */
static bool take_list(struct measuring *self, uint32_t number, enum sr_type type, const uint8_t *at, const uint8_t *end) {
    const struct sr_plan *plan = &self->schema->plans[number];
    struct sr_size size = {0, 0};
    if (!sr_measure_list(type, at, end, SR_IN_VALUE - 1, &size)) return false;
    self->states[number] = judge(plan, type, size);
    self->found[number] = (struct found){span_of(self, at, end, 0), size, 0};
    return true;
}

static uint32_t predicted(const struct measuring *self) { return self->successors[self->previous]; }

/* The plan of a name; the next record will look at it first after the plan before it. */
static inline int64_t find_feature(struct measuring *self, const uint8_t *key, uint32_t size) {
    const int64_t number = sr_names_find(&self->schema->feature_names, key, size, predicted(self));
    if (number < 0) return number;
    self->successors[self->previous] = (uint32_t)number;
    self->previous = (uint32_t)number;
    return number;
}

/* An entry whose key comes first, then one value, which is one list and nothing else. */
struct common_entry {
    const uint8_t *key, *list;
    uint32_t key_size;
    enum sr_type type;
};

static inline bool read_common_entry(const uint8_t *at, const uint8_t *end, struct common_entry *entry) {
    uint32_t size = 0;
    if (end - at < 2 || *at != SR_TAG(1, SR_DELIMITED)) return false;
    if (!(entry->key = sr_read_size(at + 1, end, &entry->key_size))) return false;
    at = entry->key + entry->key_size;
    if (end - at < 2 || *at != SR_TAG(2, SR_DELIMITED)) return false;
    if (!(at = sr_read_size(at + 1, end, &size)) || size != end - at) return false;
    if (end - at < 2 || (*at & 7) != SR_DELIMITED || *at > SR_TAG(3, SR_DELIMITED) || *at < 8) return false;
    entry->type = *at >> 3;
    entry->list = sr_read_size(at + 1, end, &size);
    return entry->list && size == end - entry->list;
}

/* Read an entry of the map of features in whatever form. */
static bool read_any_entry(struct measuring *self, const uint8_t *at, const uint8_t *end) {
    struct sr_entry entry;
    struct sr_feature feature = {SR_NO_LIST, {0, 0}, 0, 0};
    if (!sr_read_entry(at, end, SR_IN_ENTRY, &entry)) return false;
    const int64_t number = entry.is_odd ? -1 : find_feature(self, entry.key, entry.key_size);
    return number < 0 ? sr_measure_entry(at, end, &feature) : take_entry(self, (uint32_t)number, at, end);
}

static inline bool read_feature_entry(struct measuring *self, const uint8_t *at, const uint8_t *end) {
    struct common_entry entry;
    struct sr_size size = {0, 0};
    if (SR_UNLIKELY(!read_common_entry(at, end, &entry))) return read_any_entry(self, at, end);
    const int64_t number = find_feature(self, entry.key, entry.key_size);
    if (number < 0)
        return sr_is_utf8(entry.key, entry.key_size) && sr_measure_list(entry.type, entry.list, end, SR_IN_VALUE - 1, &size);
    const struct sr_plan *plan = &self->schema->plans[number];
    if (!sr_is_direct(plan)) return take_list(self, (uint32_t)number, entry.type, entry.list, end);
    if (SR_LIKELY(entry.type == plan->type && decode_directly(self, (uint32_t)number, entry.list, end))) {
        self->states[number] = PRESENT;
        return true;
    }
    /* Any other form, or a fault, which that tells. */
    return take_entry(self, (uint32_t)number, at, end);
}

/* Past the entry at `at`, if it is the one expected here, in its likely form; else NULL. */
static inline const uint8_t *read_likely_entry(struct measuring *self, const uint8_t *at, const uint8_t *end) {
    const uint32_t number = predicted(self);
    uint32_t size = 0;
    if (!(at = sr_likely_values(&self->likely[number], at, end, &size))) return NULL;
    const struct sr_plan *plan = &self->schema->plans[number];
    /* The records cannot hold so many values: the long way tells which one lacks some. */
    if (SR_UNLIKELY(!self->columns[number].values)) return NULL;
    uint8_t *out = slot(self, number, row_size(plan));
    if (plan->type == SR_INTS) {
        if (!decode_ints(self, at, size, plan->count, (int64_t *)(void *)out)) return NULL;
    } else {
        if (size != 4 * plan->count) return NULL;
        memcpy(out, at, size);
    }
    self->states[number] = PRESENT;
    self->previous = number;
    return at + size;
}

static bool read_features(struct measuring *self, const uint8_t *at, const uint8_t *end) {
    while (at < end) {
        struct sr_field field;
        for (const uint8_t *next; (next = read_likely_entry(self, at, end));) at = next;
        if (at == end) break;
        self->field = at;
        if (!(at = sr_read_field(at, end, SR_IN_MAP, &field))) return false;
        if (field.tag == SR_ITEM && !read_feature_entry(self, field.value, at)) return false;
    }
    return true;
}

/* Add the steps of one FeatureList of a plan of that type; SR_NO_LIST: of no plan. */
static bool measure_steps(const uint8_t *at, const uint8_t *end, enum sr_type type, struct found *found, uint8_t *state) {
    while (at < end) {
        struct sr_field field;
        struct sr_feature step = {SR_NO_LIST, {0, 0}, 0, 0};
        if (!(at = sr_read_field(at, end, SR_IN_VALUE, &field))) return false;
        if (field.tag != SR_ITEM) continue;
        if (!sr_measure_feature(field.value, at, SR_IN_VALUE - 1, &step)) return false;
        if (step.type != type && step.type != SR_NO_LIST) *state = SR_WRONG_KIND;
        found->steps++;
        found->size.values += step.size.values;
        found->size.bytes += step.size.bytes;
    }
    return true;
}

static bool read_list_entry(struct measuring *self, const uint8_t *at, const uint8_t *end) {
    const struct sr_schema *schema = self->schema;
    struct sr_entry entry;
    if (!sr_read_entry(at, end, SR_IN_ENTRY, &entry)) return false;
    const int64_t number = entry.is_odd ? -1 : sr_names_find(&schema->list_names, entry.key, entry.key_size, 0);
    struct found found = {span_of(self, at, end, SR_IS_ENTRY), {0, 0}, 0};
    const enum sr_type type = number < 0 ? SR_NO_LIST : schema->plans[schema->features + number].type;
    uint8_t state = PRESENT;
    for (const uint8_t *value; (at = sr_next_value(at, end, &value));)
        if (!measure_steps(value, at, type, &found, &state)) return false;
    if (number >= 0) {
        self->found[schema->features + number] = found;
        self->states[schema->features + number] = state;
    }
    return true;
}

static bool read_lists(struct measuring *self, const uint8_t *at, const uint8_t *end) {
    while (at < end) {
        struct sr_field field;
        self->field = at;
        if (!(at = sr_read_field(at, end, SR_IN_MAP, &field))) return false;
        if (field.tag == SR_ITEM && !read_list_entry(self, field.value, at)) return false;
    }
    return true;
}

static bool read_record(struct measuring *self) {
    const uint8_t *at = self->record, *end = self->record_end;
    while (at < end) {
        struct sr_field field;
        self->field = at;
        if (!(at = sr_read_field(at, end, SR_IN_RECORD, &field))) return false;
        if (field.tag == FEATURES && !read_features(self, field.value, at)) return false;
        const bool is_lists = field.tag == FEATURE_LISTS && self->schema->is_sequence;
        if (is_lists && !read_lists(self, field.value, at)) return false;
    }
    return true;
}

/* Give a row without the feature its default; whether there is one. */
static bool take_default(struct measuring *self, uint32_t number) {
    const struct sr_plan *plan = &self->schema->plans[number];
    if (plan->kind != SR_VARLEN && !plan->may_lack) return false;
    if (sr_is_direct(plan))
        sr_copy(slot(self, number, plan->values_size), plan->values, (size_t)plan->values_size);
    else
        self->found[number] = (struct found){{SR_NOWHERE, 0}, {plan->count, plan->values_size}, 0};
    return true;
}

/* Add what a row holds to a column that is filled later. */
static void add_row(const struct measuring *self, uint32_t number) {
    struct sr_column *column = &self->columns[number];
    const struct found *found = &self->found[number];
    column->spans[self->row] = found->span;
    column->size.values += found->size.values;
    column->size.bytes += found->size.bytes;
    column->steps += found->steps;
    if (!column->splits) return;
    const bool has_steps = self->schema->plans[number].kind == SR_STEPS;
    column->splits[self->row + 1] = has_steps ? column->steps : column->size.values;
}

/* The record was read: see that it has what the plans need. */
static struct sr_finding settle(struct measuring *self) {
    const uint32_t count = self->schema->features + self->schema->lists;
    /* One comparison for the usual record, in which nothing is missing. */
    const bool is_whole = memcmp(self->states, self->all_present, count) == 0;
    for (uint32_t number = 0; number < count && !is_whole; number++) {
        const uint8_t state = self->states[number];
        /* In the order of plans: the first one that is wrong is told. */
        if (state == PRESENT || (state == ABSENT && take_default(self, number))) continue;
        const enum sr_fault fault = state == ABSENT ? SR_MISSING : (enum sr_fault)state;
        return (struct sr_finding){fault, self->row, number, -1};
    }
    for (uint32_t k = 0; k < self->filled_count; k++) add_row(self, self->filled[k]);
    return (struct sr_finding){SR_NONE, -1, -1, -1};
}

static struct sr_finding measure_row(struct measuring *self, const struct sr_rows *rows, int64_t row) {
    self->row = row;
    if (rows->lengths[row] > LARGEST_MESSAGE) return (struct sr_finding){SR_TOO_LARGE, row, -1, -1};
    self->field = self->record = sr_row(rows, row);
    self->record_end = self->record + rows->lengths[row];
    self->previous = self->schema->features;
    /* Once a record: of two entries with one name, the later one overwrites the state. */
    memset(self->states, ABSENT, (size_t)self->schema->features + self->schema->lists);
    if (!read_record(self)) return (struct sr_finding){SR_MALFORMED, row, -1, self->field - self->record};
    return settle(self);
}

static bool make_room(struct measuring *self, const struct sr_schema *schema) {
    const size_t count = (size_t)schema->features + schema->lists + 1;
    self->states = malloc(2 * count);
    self->found = malloc(count * sizeof *self->found);
    self->filled = malloc(count * sizeof *self->filled);
    self->likely = calloc(count, sizeof *self->likely);
    self->successors = calloc(count, sizeof *self->successors);
    if (!self->states || !self->found || !self->filled || !self->likely || !self->successors) return false;
    /* In the second half of the memory of `states`. */
    self->all_present = memset(self->states + count, PRESENT, count);
    for (uint32_t number = 0; number + 1 < count; number++)
        if (!sr_is_direct(&schema->plans[number])) self->filled[self->filled_count++] = number;
    for (uint32_t number = 0; number < schema->features; number++) {
        self->likely[number] = sr_likely_form(&schema->plans[number], &schema->feature_names.names[number]);
        self->successors[number] = number + 1;
    }
    return true;
}

static void free_room(struct measuring *self) {
    free(self->states);
    free(self->found);
    free(self->filled);
    free(self->likely);
    free(self->successors);
}

struct sr_finding sr_measure(const struct sr_schema *schema, const struct sr_rows *rows, struct sr_column *columns) {
    struct measuring self = {.schema = schema, .columns = columns};
    struct sr_finding finding = {SR_NONE, -1, -1, -1};
    if (!make_room(&self, schema)) finding.fault = SR_NO_MEMORY;
    for (int64_t row = 0; row < rows->count && finding.fault == SR_NONE; row++)
        finding = measure_row(&self, rows, row);
    free_room(&self);
    return finding;
}
