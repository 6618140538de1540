#include "wire.h"

static const uint8_t *skip_bytes(const uint8_t *at, const uint8_t *end, uint64_t size) {
    return size <= (uint64_t)(end - at) ? at + size : NULL;
}

static const uint8_t *skip_value(const uint8_t *at, const uint8_t *end, uint32_t wire_type) {
    uint64_t value;
    uint32_t size = 0;
    switch (wire_type) {
    case SR_VARINT:
        return sr_read_varint(at, end, &value);
    case SR_FIXED64:
        return skip_bytes(at, end, 8);
    case SR_FIXED32:
        return skip_bytes(at, end, 4);
    case SR_DELIMITED:
        at = sr_read_size(at, end, &size);
        return at ? at + size : NULL;
    default:
        return NULL;
    }
}

/* Past the end of a group; without recursion, for the nesting is the input's choice. */
static const uint8_t *skip_group(const uint8_t *at, const uint8_t *end, uint32_t field, int room) {
    uint32_t open[SR_DEEPEST];
    int depth = 0;
    if (room < 1) return NULL;
    open[depth++] = field;
    while (depth) {
        uint64_t tag = 0;
        at = sr_read_varint_of(at, end, 5, &tag); /* within groups protobuf lets field 0 pass */
        if (!at || tag > UINT32_MAX) return NULL;
        const uint32_t wire_type = tag & 7;
        if (wire_type == SR_GROUP) {
            /* `room` never exceeds SR_DEEPEST, so that `open` has a place. */
            if (depth == room) return NULL;
            open[depth++] = (uint32_t)tag >> 3;
        } else if (wire_type == SR_GROUP_END) {
            /* A group ends with the number of its own field. */
            if (open[--depth] != (uint32_t)tag >> 3) return NULL;
        } else if (!(at = skip_value(at, end, wire_type))) {
            return NULL;
        }
    }
    return at;
}

const uint8_t *sr_skip(const uint8_t *at, const uint8_t *end, uint32_t tag, int room) {
    if ((tag & 7) == SR_GROUP) return skip_group(at, end, tag >> 3, room);
    return skip_value(at, end, tag & 7);
}

static bool is_continuation(const uint8_t *at, size_t left) { return left && (*at & 0xc0) == 0x80; }

/* Bytes of the character at `at`, or 0: neither overlong, nor a surrogate, nor beyond U+10FFFF.
   Source: The Unicode Standard, table 3-7. */
static size_t character(const uint8_t *at, size_t left) {
    const uint8_t first = at[0], second = left > 1 ? at[1] : 0;
    if (first < 0x80) return 1;
    if (first < 0xc2 || first > 0xf4) return 0;
    const size_t size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    for (size_t k = 1; k < size; k++)
        if (k >= left || !is_continuation(at + k, left - k)) return 0;
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
    if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
    return size;
}

bool sr_is_utf8(const uint8_t *at, size_t size) {
    while (size) {
        /* Names are mostly ASCII: eight bytes at a time. */
        if (size >= 8 && !(sr_load64(at) & SR_TOP_BITS)) {
            at += 8;
            size -= 8;
            continue;
        }
        const size_t step = character(at, size);
        if (!step) return false;
        at += step;
        size -= step;
    }
    return true;
}
