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
        uint32_t tag = 0, size = 0;
        if (!(at = sr_read_tag(at, end, &tag))) return false;
        if (!is_list(tag)) {
            if (!(at = sr_skip(at, end, tag, room))) return false;
            continue;
        }
        if (!(at = sr_read_size(at, end, &size))) return false;
        begin_list(feature, tag >> 3);
        if (!sr_measure_list(feature->type, at, at + size, room - 1, &feature->size)) return false;
        at += size;
    }
    return true;
}

bool sr_decode_feature(const uint8_t *at, const uint8_t *end, enum sr_type type, int64_t *skip,
                       struct sr_sink *sink) {
    while (at < end) {
        uint32_t tag = 0, size = 0;
        if (!(at = sr_read_tag(at, end, &tag))) return false;
        if (!is_list(tag)) {
            if (!(at = sr_skip(at, end, tag, SR_DEEPEST))) return false;
            continue;
        }
        if (!(at = sr_read_size(at, end, &size))) return false;
        if ((*skip)-- <= 0 && !sr_decode_list(type, at, at + size, sink)) return false;
        at += size;
    }
    return true;
}

enum { KEY = SR_TAG(1, SR_DELIMITED), VALUE = SR_TAG(2, SR_DELIMITED) };

bool sr_read_entry(const uint8_t *at, const uint8_t *end, int room, struct sr_entry *entry) {
    *entry = (struct sr_entry){at, 0, false}; /* without a key it is "" */
    while (at < end) {
        uint32_t tag = 0, size = 0;
        if (!(at = sr_read_tag(at, end, &tag))) return false;
        if (tag != KEY && tag != VALUE) {
            entry->is_odd = true;
            if (!(at = sr_skip(at, end, tag, room))) return false;
            continue;
        }
        if (!(at = sr_read_size(at, end, &size))) return false;
        if (tag == KEY) {
            if (!sr_is_utf8(at, size)) return false;
            entry->key = at;
            entry->key_size = size;
        }
        at += size;
    }
    return true;
}

const uint8_t *sr_next_value(const uint8_t *at, const uint8_t *end, const uint8_t **value, uint32_t *size) {
    *value = NULL;
    while (at < end) {
        uint32_t tag = 0;
        if (!(at = sr_read_tag(at, end, &tag))) return end;
        if (tag == VALUE) {
            if (!(*value = sr_read_size(at, end, size))) return end;
            return *value + *size;
        }
        if (!(at = sr_skip(at, end, tag, SR_DEEPEST))) return end;
    }
    return end;
}

bool sr_measure_entry(const uint8_t *at, const uint8_t *end, struct sr_feature *feature) {
    const uint8_t *value;
    uint32_t size = 0;
    while (at = sr_next_value(at, end, &value, &size), value)
        if (!sr_measure_feature(value, value + size, SR_IN_VALUE, feature)) return false;
    return true;
}

bool sr_decode_entry(const uint8_t *at, const uint8_t *end, const struct sr_feature *feature, struct sr_sink *sink) {
    const uint8_t *value;
    uint32_t size = 0;
    int64_t skip = feature->first;
    while (at = sr_next_value(at, end, &value, &size), value)
        if (!sr_decode_feature(value, value + size, feature->type, &skip, sink)) return false;
    return true;
}
