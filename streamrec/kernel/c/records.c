#include "records.h"

#include <stdlib.h>

#include "frames.h"
#include "memory.h"
#include "varints.h"

/* Sizes beyond it are refused, so that a sum of two of them fits int64. */
static const int64_t LONGEST = INT64_C(1) << 60;
enum { LONGEST_VARINT = 10 };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t most_of_field(const struct sr_field *field, int64_t rows) {
    int64_t size = field->head_count * LONGEST_VARINT;
    for (int k = 0; k < field->head_count; k++) size += field->heads[k].size;
    if (field->form != SR_TEXTS) return size + field->count * (field->form == SR_INTEGERS ? LONGEST_VARINT : field->width);
    int64_t longest = 0;
    for (int64_t row = 0; row < rows; row++)
        if (field->texts[row].size > longest) longest = field->texts[row].size;
    return size + longest;
}

int64_t sr_most(const struct sr_message *message) {
    int64_t size = message->head.size + LONGEST_VARINT;
    for (int64_t k = 0; k < message->field_count; k++)
        size = least(LONGEST, size + least(LONGEST, most_of_field(&message->fields[k], message->rows)));
    return size;
}

/* A row's values of a field, and the bytes behind each of its heads. */
struct part {
    const uint8_t *values;
    int64_t count, size, whole;
    int64_t behind[SR_MOST_HEADS];
    int heads;
};

static bool find_values(struct part *part, const struct sr_field *field, int64_t row) {
    if (field->form == SR_TEXTS) {
        part->values = field->texts[row].data;
        part->count = part->size = field->texts[row].size;
        return true;
    }
    const int64_t first = sr_load_once(&field->splits[row]), last = sr_load_once(&field->splits[row + 1]);
    /* Checked here and not at first: others may write to the splits meanwhile. */
    if (SR_UNLIKELY(first < 0 || first > last || last > field->count)) return false;
    part->values = field->values + first * field->width;
    part->count = last - first;
    part->size = field->form == SR_INTEGERS ? sr_varints_size((const int64_t *)(const void *)part->values, part->count)
                                            : part->count * field->width;
    return true;
}

/* Measure a row's field, from its values outward. */
static bool measure_part(struct part *part, const struct sr_field *field, int64_t row) {
    part->heads = 0;
    part->whole = part->size = 0;
    if (field->missing && field->missing[row]) return true;
    if (!find_values(part, field, row)) return false;
    int64_t size = part->size;
    part->heads = field->head_count - (field->omits_last && !size);
    for (int k = part->heads - 1; k >= 0; k--) {
        part->behind[k] = size;
        size += field->heads[k].size + sr_varint_size((uint64_t)size);
    }
    part->whole = size;
    return true;
}

static inline uint8_t *put_head(uint8_t *out, struct sr_octets head, int64_t behind) {
    /* Tags are mostly one byte, for which a call of memcpy costs more. */
    if (SR_LIKELY(head.size == 1)) *out = *head.data;
    else memcpy(out, head.data, (size_t)head.size);
    return sr_put_varint(out + head.size, (uint64_t)behind);
}

static bool put_part(uint8_t *out, const struct part *part, const struct sr_field *field) {
    for (int k = 0; k < part->heads; k++) out = put_head(out, field->heads[k], part->behind[k]);
    if (field->form == SR_INTEGERS && part->size)
        return sr_put_varints((const int64_t *)(const void *)part->values, part->count, out, part->size);
    sr_copy(out, part->values, (size_t)part->size);
    return true;
}

/* Bytes of all fields; or -1 with the fault. */
static int64_t measure_row(const struct sr_message *message, int64_t row, struct part *parts, enum sr_join_fault *fault) {
    int64_t size = 0;
    for (int64_t k = 0; k < message->field_count; k++) {
        if (SR_UNLIKELY(!measure_part(&parts[k], &message->fields[k], row))) return *fault = SR_SPLITS_FALL, -1;
        if (SR_UNLIKELY(parts[k].whole > LONGEST || size + parts[k].whole > LONGEST)) return *fault = SR_TOO_LONG, -1;
        size += parts[k].whole;
    }
    return size;
}

static bool put_row(uint8_t *out, const struct sr_message *message, int64_t size, const struct part *parts) {
    if (message->head.size) out = put_head(out, message->head, size);
    for (int64_t k = 0; k < message->field_count; k++) {
        if (SR_UNLIKELY(!put_part(out, &parts[k], &message->fields[k]))) return false;
        out += parts[k].whole;
    }
    return true;
}

struct sr_joined sr_join(const struct sr_message *message, int64_t first, int64_t most, bool framed, uint8_t *out,
                         int64_t room, int64_t *offsets) {
    struct sr_joined joined = {0, 0, SR_JOINED};
    struct part *parts = malloc((size_t)(message->field_count + 1) * sizeof *parts);
    if (!parts) return joined.fault = SR_NO_ROOM_TO_JOIN, joined;
    const struct sr_octets head = message->head;
    const int64_t framing = framed ? SR_HEADER + SR_FOOTER : 0;
    int64_t at = offsets[0] = 0;
    for (; joined.rows < most; joined.rows++) {
        const int64_t inner = measure_row(message, first + joined.rows, parts, &joined.fault);
        if (SR_UNLIKELY(inner < 0)) break;
        const int64_t size = inner + (head.size ? head.size + sr_varint_size((uint64_t)inner) : 0);
        if (SR_UNLIKELY(size + framing > room - at)) {
            joined.needed = size + framing;
            break;
        }
        uint8_t *const begin = out ? out + at + (framed ? SR_HEADER : 0) : NULL;
        if (out && SR_UNLIKELY(!put_row(begin, message, inner, parts))) {
            joined.fault = SR_CHANGED;
            break;
        }
        if (out && framed) sr_frame(begin, size);
        at += size + framing;
        offsets[joined.rows + 1] = at;
    }
    free(parts);
    return joined;
}
