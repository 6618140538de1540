#include "feature.h"

/* Whether a tag is that of a list; its type is then the field. */
static inline bool is_list(uint32_t tag) {
    return tag == SR_TAG(SR_STRINGS, SR_DELIMITED) || tag == SR_TAG(SR_FLOATS, SR_DELIMITED) ||
           tag == SR_TAG(SR_INTS, SR_DELIMITED);
}

static void begin_list(struct sr_feature *feature, enum sr_type type) {
    if (feature->type != type) {
        feature->type = type;
        feature->size = (struct sr_size){0, 0};
        feature->first = feature->lists;
    }
    feature->lists++;
}

bool sr_measure_feature(const uint8_t *at, const uint8_t *end, int room, struct sr_feature *feature) {
    while (at < end) {
        struct sr_field field;
        if (!(at = sr_read_field(at, end, room, &field))) return false;
        if (!is_list(field.tag)) continue;
        begin_list(feature, field.tag >> 3);
        if (!sr_measure_list(feature->type, field.value, at, room - 1, &feature->size)) return false;
    }
    return true;
}

bool sr_decode_feature(const uint8_t *at, const uint8_t *end, enum sr_type type, int64_t *skip,
                       struct sr_sink *sink) {
    while (at < end) {
        struct sr_field field;
        if (!(at = sr_read_field(at, end, SR_DEEPEST, &field))) return false;
        if (is_list(field.tag) && (*skip)-- <= 0 && !sr_decode_list(type, field.value, at, sink)) return false;
    }
    return true;
}

enum { KEY = SR_TAG(1, SR_DELIMITED), VALUE = SR_TAG(2, SR_DELIMITED) };

bool sr_read_entry(const uint8_t *at, const uint8_t *end, int room, struct sr_entry *entry) {
    *entry = (struct sr_entry){at, 0, false}; /* without a key it is "" */
    while (at < end) {
        struct sr_field field;
        if (!(at = sr_read_field(at, end, room, &field))) return false;
        if (field.tag == KEY) {
            entry->key = field.value;
            entry->key_size = (uint32_t)(at - field.value);
            /* protobuf refuses a string that is not UTF-8, also of a name that nobody asked for. */
            if (!sr_is_utf8(entry->key, entry->key_size)) return false;
        } else if (field.tag != VALUE) {
            entry->is_odd = true;
        }
    }
    return true;
}

const uint8_t *sr_next_value(const uint8_t *at, const uint8_t *end, const uint8_t **value) {
    while (at && at < end) {
        struct sr_field field;
        at = sr_read_field(at, end, SR_DEEPEST, &field);
        *value = field.value;
        if (at && field.tag == VALUE) return at;
    }
    return NULL;
}

bool sr_measure_entry(const uint8_t *at, const uint8_t *end, struct sr_feature *feature) {
    for (const uint8_t *value; (at = sr_next_value(at, end, &value));)
        if (!sr_measure_feature(value, at, SR_IN_VALUE, feature)) return false;
    return true;
}

bool sr_decode_entry(const uint8_t *at, const uint8_t *end, const struct sr_feature *feature, struct sr_sink *sink) {
    /* Lists before it were replaced by one of another type. */
    int64_t skip = feature->first;
    for (const uint8_t *value; (at = sr_next_value(at, end, &value));)
        if (!sr_decode_feature(value, at, feature->type, &skip, sink)) return false;
    return true;
}
