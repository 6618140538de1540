#include "parsing.h"

#include "compose.h"
#include "crc32c.h"
#include "packed.h"
#include "schema.h"

enum { MOST_ROWS = 5, LONGEST_COMPOSED = 4096 };

void parsing_init(void) {
    sr_crc32c_init();
    sr_packed_init();
}

/* -- Records ------------------------------------------------------------------------------------ */

/* Each in a buffer of its own and of just its size. */
struct records {
    struct sr_buffer buffers[MOST_ROWS];
    int64_t count;
};

static void draw_records(struct records *records, struct input *input, bool are_composed) {
    size_t sizes[MOST_ROWS] = {0};
    records->count = (int64_t)take_below(input, MOST_ROWS + 1);
    for (int64_t k = 0; k + 1 < records->count && !are_composed; k++) sizes[k] = take_number(input, 2);
    for (int64_t k = 0; k < records->count; k++) {
        uint8_t composed[LONGEST_COMPOSED];
        const bool is_last = k + 1 == records->count;
        const uint8_t *data = are_composed ? composed : input->data;
        size_t size = are_composed ? compose(input, composed, sizeof composed) : sizes[k];
        if (!are_composed) {
            if (is_last || size > input->size) size = input->size;
            input->data += size;
            input->size -= size;
        }
        records->buffers[k] = (struct sr_buffer){copy_of(data, size), (int64_t)size};
    }
}

/* Change bytes of them, as a hostile sender does, or another thread while they are parsed. */
static void damage(struct records *records, struct input *input, int times) {
    while (times-- && records->count) {
        struct sr_buffer *buffer = &records->buffers[take_below(input, (uint64_t)records->count)];
        const uint64_t at = take_number(input, 2);
        const uint8_t change = take_byte(input);
        if (buffer->size) ((uint8_t *)buffer->data)[at % (uint64_t)buffer->size] ^= change;
    }
}

static void free_records(struct records *records) {
    for (int64_t k = 0; k < records->count; k++) free((void *)records->buffers[k].data);
}

/* Some of the records, in an order. */
enum { MOST_CHOSEN = 8 };
struct chosen {
    struct sr_rows rows;
    int32_t index[MOST_CHOSEN];
    int64_t offsets[MOST_CHOSEN], lengths[MOST_CHOSEN], size;
};

static void choose_record(struct chosen *chosen, const struct records *records, int64_t number) {
    const int64_t row = chosen->rows.count++;
    chosen->index[row] = (int32_t)number;
    chosen->offsets[row] = 0;
    chosen->lengths[row] = records->buffers[number].size;
    chosen->size += chosen->lengths[row];
}

static void begin_choice(struct chosen *chosen, const struct records *records) {
    memset(chosen, 0, sizeof *chosen);
    chosen->rows.buffers = records->buffers;
    chosen->rows.buffer_count = records->count;
    chosen->rows.buffer_index = chosen->index;
    chosen->rows.offsets = chosen->offsets;
    chosen->rows.lengths = chosen->lengths;
}

static void choose_first(struct chosen *chosen, const struct records *records, int64_t count) {
    begin_choice(chosen, records);
    for (int64_t k = 0; k < count; k++) choose_record(chosen, records, k);
}

/* -- Memory, as streamrec/kernel/native/examples.py gives it -------------------------------------- */

struct parsed {
    const struct sr_schema *schema;
    const struct chosen *chosen;
    struct sr_finding finding;
    bool is_filled;
    struct sr_column columns[MOST_PLANS];
    /* Where a column's memory begins: filling moves the addresses that are in it. */
    uint8_t *values[MOST_PLANS];
    int64_t *ends[MOST_PLANS], *step_ends[MOST_PLANS], steps[MOST_PLANS];
};

static uint32_t plan_count(const struct sr_schema *schema) { return schema->features + schema->lists; }

static void give_memory_to_measure(struct parsed *self, uint32_t number) {
    const struct sr_plan *plan = &self->schema->plans[number];
    struct sr_column *column = &self->columns[number];
    const int64_t rows = self->chosen->rows.count;
    if (sr_is_direct(plan)) {
        /* None where records of that size cannot hold so many: measuring then finds a row that lacks some. */
        if (plan->may_lack || rows * plan->count <= self->chosen->size)
            column->values = self->values[number] = exactly_items(rows * plan->count, width_of(plan));
        return;
    }
    if (plan->kind != SR_FIXED) {
        column->splits = exactly_items(rows + 1, sizeof *column->splits);
        column->splits[0] = 0;
    }
    column->spans = exactly_items(rows, sizeof *column->spans);
}

static void give_memory_to_fill(struct parsed *self, uint32_t number) {
    const struct sr_plan *plan = &self->schema->plans[number];
    struct sr_column *column = &self->columns[number];
    if (sr_is_direct(plan)) return;
    const bool is_strings = plan->type == SR_STRINGS;
    const int64_t size = is_strings ? column->size.bytes : column->size.values * (int64_t)width_of(plan);
    column->sink.values = self->values[number] = exactly_items(size, 1);
    column->sink.values_end = column->sink.values + size;
    if (is_strings) {
        column->sink.ends = self->ends[number] = exactly_items(column->size.values, sizeof *column->sink.ends);
        column->sink.ends_end = column->sink.ends + column->size.values;
    }
    self->steps[number] = column->steps;
    if (plan->kind == SR_STEPS)
        column->step_ends = self->step_ends[number] = exactly_items(column->steps, sizeof *column->step_ends);
}

static void free_filled(struct parsed *self) {
    for (uint32_t k = 0; k < plan_count(self->schema); k++) {
        if (sr_is_direct(&self->schema->plans[k])) continue;
        free(self->values[k]);
        free(self->ends[k]);
        free(self->step_ends[k]);
        self->values[k] = NULL, self->ends[k] = NULL, self->step_ends[k] = NULL;
    }
}

static void free_parsed(struct parsed *self) {
    free_filled(self);
    for (uint32_t k = 0; k < plan_count(self->schema); k++) {
        free(self->columns[k].values);
        free(self->columns[k].splits);
        free(self->columns[k].spans);
    }
}

/* -- What must hold of a result ------------------------------------------------------------------ */

static void check_finding(const struct parsed *self) {
    const struct sr_finding *finding = &self->finding;
    if (finding->fault == SR_NONE) {
        CHECK(finding->row == -1 && finding->plan == -1 && finding->offset == -1);
        return;
    }
    CHECK(finding->row >= 0 && finding->row < self->chosen->rows.count);
    CHECK(finding->plan >= -1 && finding->plan < (int64_t)plan_count(self->schema));
    CHECK(finding->offset >= -1 && finding->offset <= self->chosen->lengths[finding->row]);
    const struct sr_plan *plan = finding->plan < 0 ? NULL : &self->schema->plans[finding->plan];
    switch (finding->fault) {
    case SR_MALFORMED:
        CHECK(!plan);
        break;
    case SR_MISSING:
        CHECK(plan && !plan->may_lack && plan->kind != SR_VARLEN);
        break;
    case SR_WRONG_KIND:
        CHECK(plan);
        break;
    case SR_WRONG_COUNT:
        CHECK(plan && (plan->kind == SR_FIXED || plan->kind == SR_RAW));
        break;
    case SR_WRONG_SIZE:
        CHECK(plan && plan->kind == SR_RAW);
        break;
    default:
        CHECK(!"a fault of records");
    }
}

/* Sizes are borne out by the records' own bytes, but for those that the plan itself sets. */
static void check_size(const struct parsed *self, uint32_t number) {
    const struct sr_plan *plan = &self->schema->plans[number];
    const struct sr_column *column = &self->columns[number];
    const int64_t rows = self->chosen->rows.count, size = self->chosen->size;
    const int64_t least = plan->type == SR_FLOATS ? 4 : plan->type == SR_STRINGS ? 2 : 1; /* bytes of a value */
    if (plan->kind == SR_FIXED) {
        CHECK(column->size.values == rows * plan->count);
        CHECK(column->size.bytes <= size + (plan->may_lack ? rows * plan->values_size : 0));
    } else {
        CHECK(column->size.values <= size / least && column->size.bytes <= size);
        CHECK(column->steps <= size / 2);
        CHECK(column->splits[rows] == (plan->kind == SR_STEPS ? column->steps : column->size.values));
    }
    CHECK(column->size.values >= 0 && column->size.bytes >= 0 && column->steps >= 0);
    CHECK(plan->type == SR_STRINGS || column->size.bytes == 0);
    CHECK(plan->kind == SR_STEPS || column->steps == 0);
    for (int64_t row = 0; column->splits && row < rows; row++) CHECK(column->splits[row] <= column->splits[row + 1]);
}

static void check_ends(const int64_t *ends, int64_t count, int64_t whole) {
    for (int64_t k = 0, before = 0; k < count; before = ends[k++]) CHECK(ends[k] >= before);
    CHECK(!count || ends[count - 1] <= whole);
}

static void check_filled(const struct parsed *self, uint32_t number) {
    const struct sr_column *column = &self->columns[number];
    if (!column->spans) return;
    CHECK(column->sink.values == column->sink.values_end && column->sink.ends == column->sink.ends_end);
    if (self->ends[number]) check_ends(self->ends[number], column->size.values, column->size.bytes);
    if (self->step_ends[number]) check_ends(self->step_ends[number], self->steps[number], column->size.values);
}

static void fill(struct parsed *self, const struct sr_rows *rows) {
    for (uint32_t k = 0; k < plan_count(self->schema); k++) give_memory_to_fill(self, k);
    self->is_filled = sr_fill(self->schema, rows, self->columns);
}

static void parse(struct parsed *self, const struct drawn_schema *drawn, const struct chosen *chosen) {
    memset(self, 0, sizeof *self);
    self->schema = &drawn->schema;
    self->chosen = chosen;
    for (uint32_t k = 0; k < plan_count(self->schema); k++) give_memory_to_measure(self, k);
    self->finding = sr_measure(self->schema, &chosen->rows, self->columns);
    check_finding(self);
    if (self->finding.fault != SR_NONE) return;
    for (uint32_t k = 0; k < plan_count(self->schema); k++) {
        if (sr_is_direct(&self->schema->plans[k]))
            CHECK(self->values[k]);
        else
            check_size(self, k);
    }
    fill(self, &chosen->rows);
    CHECK(self->is_filled);
    for (uint32_t k = 0; k < plan_count(self->schema); k++) check_filled(self, k);
}

/* -- Results held against each other -------------------------------------------------------------- */

/* A row's part of a column. */
struct part {
    const uint8_t *values;
    int64_t size;                                /* of the values, in bytes */
    const int64_t *ends, *step_ends;             /* of strings and of steps */
    int64_t count, steps, first_end, first_step; /* how many, and what they count on from */
};

static int64_t begin_of(const int64_t *ends, int64_t k) { return k ? ends[k - 1] : 0; }

static struct part part_of(const struct parsed *self, uint32_t number, int64_t row) {
    const struct sr_plan *plan = &self->schema->plans[number];
    const struct sr_column *column = &self->columns[number];
    const int64_t width = (int64_t)width_of(plan);
    struct part part = {.count = plan->count};
    int64_t first = row * plan->count;
    if (column->splits) {
        first = column->splits[row];
        part.count = column->splits[row + 1] - first;
    }
    if (plan->kind == SR_STEPS) {
        part.steps = part.count;
        part.step_ends = self->step_ends[number] + first;
        const int64_t end = begin_of(self->step_ends[number], first + part.steps);
        part.first_step = first = begin_of(self->step_ends[number], first);
        part.count = end - first;
    }
    int64_t begin = first * width;
    part.size = part.count * width;
    if (!sr_is_direct(plan) && plan->type == SR_STRINGS) {
        part.ends = self->ends[number] + first;
        part.first_end = begin = begin_of(self->ends[number], first);
        part.size = begin_of(self->ends[number], first + part.count) - begin;
    }
    part.values = self->values[number] + begin;
    return part;
}

static void check_same_ends(const int64_t *ends, int64_t first, const int64_t *others, int64_t others_first,
                            int64_t count) {
    for (int64_t k = 0; k < count; k++) CHECK(ends[k] - first == others[k] - others_first);
}

static void check_same_values(const struct part *part, const uint8_t *values, int64_t size) {
    CHECK(part->size == size && (!size || !memcmp(part->values, values, (size_t)size)));
}

static void check_same_part(const struct part *part, const struct part *other) {
    CHECK(part->count == other->count && part->steps == other->steps);
    check_same_values(part, other->values, other->size);
    if (part->ends) check_same_ends(part->ends, part->first_end, other->ends, other->first_end, part->count);
    check_same_ends(part->step_ends, part->first_step, other->step_ends, other->first_step, part->steps);
}

static void check_same_row(const struct parsed *self, int64_t row, const struct parsed *other, int64_t other_row) {
    for (uint32_t number = 0; number < plan_count(self->schema); number++) {
        const struct part part = part_of(self, number, row), others = part_of(other, number, other_row);
        check_same_part(&part, &others);
    }
}

/* The same rows in another order, some of them twice, some not at all, give the same values. */
static void check_reordered(const struct drawn_schema *drawn, const struct records *records, const struct parsed *whole,
                            struct input *input) {
    struct chosen chosen;
    struct parsed again;
    begin_choice(&chosen, records);
    const uint64_t count = records->count ? take_below(input, MOST_CHOSEN + 1) : 0;
    for (uint64_t k = 0; k < count; k++)
        choose_record(&chosen, records, (int64_t)take_below(input, (uint64_t)records->count));
    parse(&again, drawn, &chosen);
    CHECK(again.finding.fault == SR_NONE);
    for (int64_t row = 0; row < chosen.rows.count; row++) check_same_row(&again, row, whole, chosen.index[row]);
    free_parsed(&again);
}

/* A column of any kind holds what one of as many values as there are holds: the shortcuts for values
   that have a place beforehand are right. */
static void check_loosened(const struct drawn_schema *drawn, const struct parsed *whole) {
    struct drawn_schema loose;
    struct parsed other;
    loosen_schema(&loose, drawn);
    parse(&other, &loose, whole->chosen);
    CHECK(other.finding.fault == SR_NONE);
    for (uint32_t number = 0; number < plan_count(whole->schema); number++) {
        const struct sr_plan *plan = &drawn->plans[number];
        for (int64_t row = 0; row < whole->chosen->rows.count; row++) {
            struct part part = part_of(whole, number, row);
            const struct part others = part_of(&other, number, row);
            if (plan->kind == SR_RAW) {
                if (!others.count && plan->may_lack) continue;
                CHECK(others.count == 1);
                check_same_values(&part, others.values, others.size);
            } else if (others.count || others.steps || !plan->may_lack) {
                check_same_part(&part, &others);
            } else if (plan->kind == SR_FIXED) {
                check_same_values(&part, plan->values, plan->values_size);
            }
        }
    }
    free_parsed(&other);
    free_schema(&loose);
}

/* A row that cannot be parsed cannot be parsed by itself either, for the same reason; those before it
   can. */
static void check_fault(const struct drawn_schema *drawn, const struct records *records,
                        const struct sr_finding *finding) {
    struct chosen chosen;
    struct parsed other;
    choose_first(&chosen, records, finding->row);
    parse(&other, drawn, &chosen);
    CHECK(other.finding.fault == SR_NONE);
    free_parsed(&other);
    begin_choice(&chosen, records);
    choose_record(&chosen, records, finding->row);
    parse(&other, drawn, &chosen);
    CHECK(other.finding.fault == finding->fault && other.finding.row == 0);
    CHECK(other.finding.plan == finding->plan && other.finding.offset == finding->offset);
    free_parsed(&other);
}

/* Rows that are no longer those that were measured: refused or not, within the memory. */
static void check_changed(struct records *records, struct parsed *whole, struct input *input) {
    struct chosen changed = *whole->chosen;
    const uint8_t choice = take_byte(input);
    changed.rows.buffer_index = changed.index;
    changed.rows.offsets = changed.offsets;
    changed.rows.lengths = changed.lengths;
    if (choice & 1) damage(records, input, 1 + (choice >> 1 & 3));
    if (choice & 8) choose_first(&changed, records, 0);
    for (int64_t k = 0; choice & 8 && k < records->count; k++) choose_record(&changed, records, records->count - 1 - k);
    for (uint32_t k = 0; k < plan_count(whole->schema); k++) whole->columns[k].steps = whole->steps[k];
    free_filled(whole);
    fill(whole, &changed.rows);
}

void check_parsing(const uint8_t *data, size_t size, bool is_sequence) {
    struct input input = {data, size};
    struct drawn_schema drawn;
    struct records records;
    struct chosen chosen;
    struct parsed whole;
    const uint8_t choice = take_byte(&input), way = choice >> 1 & 3;
    sr_decode_packed = sr_packed_ways[way < SR_PACKED_WAYS && sr_packed_ways[way] ? way : 0];
    draw_schema(&drawn, &input, is_sequence);
    const struct input order = input; /* what only orders and damages takes bytes that are records too */
    draw_records(&records, &input, choice & 1);
    input = order;
    check_names(&drawn, &input);
    if (choice & 8) damage(&records, &input, 1 + (choice >> 4 & 3));

    choose_first(&chosen, &records, records.count);
    parse(&whole, &drawn, &chosen);
    if (whole.finding.fault == SR_NONE) {
        check_reordered(&drawn, &records, &whole, &input);
        check_loosened(&drawn, &whole);
        check_changed(&records, &whole, &input);
    } else {
        check_fault(&drawn, &records, &whole.finding);
    }
    free_parsed(&whole);
    free_records(&records);
    free_schema(&drawn);
}
