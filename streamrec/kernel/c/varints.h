/* Integers as varints, by rows. Source: protobuf.dev/programming-guides/encoding. */
#ifndef SR_VARINTS_H
#define SR_VARINTS_H

#include <stdbool.h>
#include <stdint.h>

/* Whether splits rise from `splits[0]` >= 0 to at most `count`; there are rows + 1 of them. */
bool sr_splits_rise(const int64_t *splits, int64_t rows, int64_t count);

/* Compute where the varints of each row's integers begin and end, from 0 on: rows + 1 offsets. */
void sr_varint_offsets(const int64_t *values, const int64_t *splits, int64_t rows, int64_t *offsets);

/* Write the varints of the integers values[first:last] end to end. Needs `size` bytes of room, as
   they were measured; false where the integers have changed since, and would take another number. */
bool sr_put_varints(const int64_t *values, int64_t first, int64_t last, uint8_t *out, int64_t size);

#endif
