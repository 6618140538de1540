#include "rows.h"

#include "memory.h"

static bool is_inside(const struct sr_rows *rows, int64_t row) {
    const int32_t index = rows->buffer_index[row];
    const int64_t offset = rows->offsets[row], length = rows->lengths[row];
    if (index < 0 || index >= rows->buffer_count || offset < 0 || length < 0) return false;
    const int64_t size = rows->buffers[index].size;
    /* As a difference, since the sum may overflow. */
    return offset <= size && length <= size - offset;
}

int64_t sr_row_outside(const struct sr_rows *rows) {
    for (int64_t row = 0; row < rows->count; row++)
        if (SR_UNLIKELY(!is_inside(rows, row))) return row;
    return -1;
}

int64_t sr_rows_size(const struct sr_rows *rows) {
    const int64_t frame = 16; /* bytes around each payload */
    int64_t framed = 0, size;
    if (__builtin_mul_overflow(rows->count, frame, &framed)) return -1;
    size = framed;
    for (int64_t row = 0; row < rows->count; row++)
        if (__builtin_add_overflow(size, rows->lengths[row], &size)) return -1;
    return size - framed;
}

void sr_gather(const struct sr_rows *rows, uint8_t *values, int64_t *offsets) {
    int64_t at = 0;
    for (int64_t row = 0; row < rows->count; row++) {
        offsets[row] = at;
        sr_copy(values + at, sr_row(rows, row), (size_t)rows->lengths[row]);
        at += rows->lengths[row];
    }
    offsets[rows->count] = at;
}
