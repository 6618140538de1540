/* The protobuf wire format, read as protobuf's own parser reads it.

   Every function takes the bytes from `at` to `end`, and returns where it stopped, or NULL where they
   are malformed. A tag or a size takes at most 5 bytes, a value at most 10, of which the last one's
   surplus bits are dropped. Source: protobuf.dev/programming-guides/encoding, and the limits of
   protobuf's parser, upb. */
#ifndef SR_WIRE_H
#define SR_WIRE_H

#include "memory.h"

enum sr_wire_type { SR_VARINT = 0, SR_FIXED64 = 1, SR_DELIMITED = 2, SR_GROUP = 3, SR_GROUP_END = 4, SR_FIXED32 = 5 };

#define SR_TAG(field, wire_type) ((uint32_t)(field) << 3 | (wire_type))

/* How many messages and groups may be nested in a message. */
enum { SR_DEEPEST = 100 };

static inline const uint8_t *sr_read_varint_of(const uint8_t *at, const uint8_t *end, int longest, uint64_t *value) {
    /* The end is compared as a distance: a sum could point beyond the memory. */
    const uint8_t *last = end - at > longest ? at + longest : end;
    uint64_t sum = 0;
    for (int shift = 0; at < last; shift += 7) {
        const uint64_t byte = *at++;
        sum |= (byte & 127) << shift;
        if (byte < 128) {
            *value = sum;
            return at;
        }
    }
    return NULL;
}

static inline const uint8_t *sr_read_varint(const uint8_t *at, const uint8_t *end, uint64_t *value) {
    return sr_read_varint_of(at, end, 10, value);
}

static inline const uint8_t *sr_read_tag(const uint8_t *at, const uint8_t *end, uint32_t *tag) {
    if (SR_LIKELY(at < end && *at < 128)) {
        *tag = *at;
        return *at < 8 ? NULL : at + 1; /* there is no field 0 */
    }
    uint64_t value = 0;
    at = sr_read_varint_of(at, end, 5, &value);
    *tag = (uint32_t)value;
    /* Below 8 is field 0, which does not exist. */
    return value >= 8 && value <= UINT32_MAX ? at : NULL;
}

/* The top bits of a word's bytes: all but the last byte of a varint have theirs set. */
#define SR_TOP_BITS 0x8080808080808080u

/* The value of a varint of `size` bytes, 1 to 8, that begins at the low end of a word. */
static inline uint64_t sr_varint_of_word(uint64_t word, unsigned size) {
    word &= UINT64_MAX >> (64 - 8 * size);
    word = (word & 0x007f007f007f007fu) | (word & 0x7f007f007f007f00u) >> 1;
    word = (word & 0x00003fff00003fffu) | (word & 0x3fff00003fff0000u) >> 2;
    return (word & 0x000000000fffffffu) | (word & 0x0fffffff00000000u) >> 4;
}

/* A size, of which that many bytes are there. */
static inline const uint8_t *sr_read_size(const uint8_t *at, const uint8_t *end, uint32_t *size) {
    uint64_t value = 0;
    if (SR_LIKELY(at < end && *at < 128))
        value = *at++;
    else if (!(at = sr_read_varint_of(at, end, 5, &value)))
        return NULL;
    *size = (uint32_t)value;
    /* protobuf lets no part of a message be longer than INT32_MAX. */
    return value <= (uint64_t)(end - at) && value <= INT32_MAX ? at : NULL;
}

/* Past the value behind a tag, within which `room` groups may be nested. */
const uint8_t *sr_skip(const uint8_t *at, const uint8_t *end, uint32_t tag, int room);

struct sr_field {
    uint32_t tag;
    const uint8_t *value; /* of SR_DELIMITED the bytes behind the size; it ends where the field does */
};

/* Read a field and go past it; `room` as in sr_skip. */
static inline const uint8_t *sr_read_field(const uint8_t *at, const uint8_t *end, int room, struct sr_field *field) {
    uint32_t size = 0;
    if (!(field->value = sr_read_tag(at, end, &field->tag))) return NULL;
    if (SR_UNLIKELY((field->tag & 7) != SR_DELIMITED)) return sr_skip(field->value, end, field->tag, room);
    field->value = sr_read_size(field->value, end, &size);
    return field->value ? field->value + size : NULL;
}

bool sr_is_utf8(const uint8_t *at, size_t size);

#endif
