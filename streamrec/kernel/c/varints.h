/* Integers as varints. Source: protobuf.dev/programming-guides/encoding. */
#ifndef SR_VARINTS_H
#define SR_VARINTS_H

#include <stdbool.h>
#include <stdint.h>

/* The bytes of a varint, one for each seven bits: nine sixty-fourths of the bits, rounded up. */
static inline int64_t sr_varint_size(uint64_t value) { return ((64 - __builtin_clzll(value | 1)) * 9 + 64) >> 6; }

static inline uint8_t *sr_put_varint(uint8_t *out, uint64_t value) {
    for (; value > 127; value >>= 7) *out++ = (uint8_t)(value | 128);
    *out++ = (uint8_t)value;
    return out;
}

/* The bytes of the varints of integers together. */
int64_t sr_varints_size(const int64_t *values, int64_t count);

/* Write the varints of integers end to end. Needs `size` bytes of room, as they were measured; false
   where the integers have changed since, and would take another number. */
bool sr_put_varints(const int64_t *values, int64_t count, uint8_t *out, int64_t size);

#endif
