/* Records in order, as references into buffers: streamrec.values.record_rows.RecordRows. */
#ifndef SR_ROWS_H
#define SR_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sr_buffer {
    const uint8_t *data;
    int64_t size;
};

struct sr_rows {
    const struct sr_buffer *buffers;
    int64_t buffer_count;
    const int32_t *buffer_index;
    const int64_t *offsets;
    const int64_t *lengths;
    int64_t count;
};

/* The first row that does not lie in its buffer, or -1. All other functions rely on there being
   none, and on lengths whose sum with SR_HEADER + SR_FOOTER for each fits int64. */
int64_t sr_row_outside(const struct sr_rows *rows);

static inline const uint8_t *sr_row(const struct sr_rows *rows, int64_t row) {
    return rows->buffers[rows->buffer_index[row]].data + rows->offsets[row];
}

/* Bytes of all payloads together, or -1 where int64 cannot hold them with their frames. */
int64_t sr_rows_size(const struct sr_rows *rows);

/* Copy all payloads end to end; offsets[row] is where each begins, offsets[count] the end. */
void sr_gather(const struct sr_rows *rows, uint8_t *values, int64_t *offsets);

#endif
