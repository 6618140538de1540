#include "list.h"

#include "packed.h"

/* All lists hold their values in field 1. */
enum {
    PACKED = SR_TAG(1, SR_DELIMITED), /* of numbers; of strings: one */
    ONE_INT = SR_TAG(1, SR_VARINT),
    ONE_FLOAT = SR_TAG(1, SR_FIXED32),
};

static bool add_packed(enum sr_type type, const uint8_t *at, uint32_t size, struct sr_size *sum) {
    if (type == SR_INTS) {
        const int64_t count = sr_count_packed(at, at + size);
        sum->values += count;
        return count >= 0;
    }
    if (type == SR_FLOATS) {
        sum->values += size / 4;
        /* Packed floats have four bytes each, and no part of one. */
        return size % 4 == 0;
    }
    sum->values++;
    sum->bytes += size;
    return true;
}

static bool is_one_number(enum sr_type type, uint32_t tag) {
    return (type == SR_INTS && tag == ONE_INT) || (type == SR_FLOATS && tag == ONE_FLOAT);
}

bool sr_measure_list(enum sr_type type, const uint8_t *at, const uint8_t *end, int room, struct sr_size *sum) {
    while (at < end) {
        struct sr_field field;
        if (!(at = sr_read_field(at, end, room, &field))) return false;
        /* protobuf reads numbers one by one, too, as older writers give them. */
        if (field.tag != PACKED) sum->values += is_one_number(type, field.tag);
        else if (!add_packed(type, field.value, (uint32_t)(at - field.value), sum)) return false;
    }
    return true;
}

static bool put_bytes(struct sr_sink *sink, const uint8_t *at, uint32_t size) {
    /* The bytes may have changed since they were measured. */
    if (size > sink->values_end - sink->values) return false;
    sr_copy(sink->values, at, size);
    sink->values += size;
    return true;
}

static bool put_string(struct sr_sink *sink, const uint8_t *at, uint32_t size) {
    if (sink->ends == sink->ends_end || !put_bytes(sink, at, size)) return false;
    sink->bytes += size;
    *sink->ends++ = sink->bytes;
    return true;
}

static bool put_ints(struct sr_sink *sink, const uint8_t *at, uint32_t size) {
    int64_t *out = (int64_t *)(void *)sink->values;
    out = sr_decode_packed(at, at + size, out, (int64_t *)(void *)sink->values_end);
    if (out) sink->values = (uint8_t *)out;
    return out;
}

static bool put_packed(enum sr_type type, struct sr_sink *sink, const uint8_t *at, uint32_t size) {
    if (type == SR_INTS) return put_ints(sink, at, size);
    return type == SR_FLOATS ? put_bytes(sink, at, size) : put_string(sink, at, size);
}

bool sr_decode_list(enum sr_type type, const uint8_t *at, const uint8_t *end, struct sr_sink *sink) {
    while (at < end) {
        struct sr_field field;
        if (!(at = sr_read_field(at, end, SR_DEEPEST, &field))) return false;
        if (field.tag != PACKED && !is_one_number(type, field.tag)) continue;
        if (!put_packed(type, sink, field.value, (uint32_t)(at - field.value))) return false;
    }
    return true;
}
