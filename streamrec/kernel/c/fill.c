#include "examples.h"
#include "feature.h"

static bool put_default(const struct sr_plan *plan, struct sr_sink *sink) {
    if (plan->kind != SR_FIXED) return true;
    if (plan->values_size > sink->values_end - sink->values || plan->count > sink->ends_end - sink->ends) return false;
    sr_copy(sink->values, plan->values, (size_t)plan->values_size);
    for (int64_t k = 0; k < plan->count; k++) *sink->ends++ = sink->bytes + plan->ends[k];
    sink->values += plan->values_size;
    sink->bytes += plan->values_size;
    return true;
}

static int64_t values_in(const struct sr_column *column, enum sr_type type, const struct sr_sink *begin) {
    if (type == SR_STRINGS) return column->sink.ends - begin->ends;
    return (column->sink.values - begin->values) / (type == SR_INTS ? 8 : 4);
}

static bool fill_step(struct sr_column *column, enum sr_type type, const uint8_t *at, const uint8_t *end) {
    struct sr_feature step = {SR_NO_LIST, {0, 0}, 0, 0};
    if (!sr_measure_feature(at, end, SR_IN_VALUE - 1, &step)) return false;
    return step.type == SR_NO_LIST || sr_decode_feature(at, end, type, &step.first, &column->sink);
}

static bool fill_steps(struct sr_column *column, const struct sr_sink *begin, enum sr_type type, const uint8_t *at,
                       const uint8_t *end) {
    while (at < end) {
        struct sr_field field;
        if (!(at = sr_read_field(at, end, SR_IN_VALUE, &field))) return false;
        if (field.tag != SR_ITEM) continue;
        if (column->steps-- <= 0 || !fill_step(column, type, field.value, at)) return false;
        *column->step_ends++ = values_in(column, type, begin);
    }
    return true;
}

/* A Feature given in any form. Measured again, it tells which of its lists are left. */
static bool fill_entry(struct sr_column *column, enum sr_type type, const uint8_t *at, const uint8_t *end) {
    struct sr_feature feature = {SR_NO_LIST, {0, 0}, 0, 0};
    if (!sr_measure_entry(at, end, &feature)) return false;
    return feature.type == type && sr_decode_entry(at, end, &feature, &column->sink);
}

static bool fill_list_entry(struct sr_column *column, const struct sr_sink *begin, enum sr_type type, const uint8_t *at,
                            const uint8_t *end) {
    for (const uint8_t *value; (at = sr_next_value(at, end, &value));)
        if (!fill_steps(column, begin, type, value, at)) return false;
    return true;
}

static bool fill_row(const struct sr_plan *plan, struct sr_column *column, const struct sr_sink *begin,
                     const uint8_t *record, struct sr_span span) {
    if (span.begin == SR_NOWHERE) return put_default(plan, &column->sink);
    const uint8_t *at = record + (span.begin & ~SR_IS_ENTRY), *end = record + span.end;
    if (plan->kind == SR_STEPS) return fill_list_entry(column, begin, plan->type, at, end);
    if (span.begin & SR_IS_ENTRY) return fill_entry(column, plan->type, at, end);
    return sr_decode_list(plan->type, at, end, &column->sink);
}

/* What was found of a row lies in it still: the rows may have come to be others. */
static bool is_within(struct sr_span span, int64_t length) { return span.begin == SR_NOWHERE || span.end <= length; }

static bool fill_column(const struct sr_plan *plan, struct sr_column *column, const struct sr_rows *rows) {
    const struct sr_sink begin = column->sink;
    for (int64_t row = 0; row < rows->count; row++) {
        const struct sr_span span = column->spans[row];
        /* Before the pointers are made, which must not leave the record. */
        if (!is_within(span, rows->lengths[row])) return false;
        if (!fill_row(plan, column, &begin, sr_row(rows, row), span)) return false;
    }
    const bool is_full = column->sink.values == column->sink.values_end && column->sink.ends == column->sink.ends_end;
    return is_full && (plan->kind != SR_STEPS || !column->steps);
}

bool sr_fill(const struct sr_schema *schema, const struct sr_rows *rows, struct sr_column *columns) {
    for (uint32_t number = 0; number < schema->features + schema->lists; number++)
        if (columns[number].spans && !fill_column(&schema->plans[number], &columns[number], rows)) return false;
    return true;
}
