/* Rows: offsets, lengths and buffers' numbers of any kind against arithmetic that cannot overflow,
   then gathering those that lie in their buffers. */
#include "rows.h"

#include "crc32c.h"
#include "frames.h"
#include "input.h"

enum { MOST_BUFFERS = 4, MOST_ROWS = 12 };

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    sr_crc32c_init();
    return 0;
}

/* Small numbers mostly, which may lie in a buffer; else the extremes, or any. */
static int64_t take_position(struct input *input) {
    static const int64_t extremes[] = {INT64_MIN, INT64_MIN + 1, -1, INT32_MAX, (int64_t)INT32_MAX + 1, INT64_MAX - 16,
                                       INT64_MAX - 1, INT64_MAX};
    const uint8_t choice = take_byte(input);
    if (choice < 0xe0) return choice & 31;
    return choice < 0xf0 ? extremes[choice & 7] : (int64_t)take_number(input, 8);
}

static int64_t first_outside(const struct sr_rows *rows) {
    for (int64_t row = 0; row < rows->count; row++) {
        const int64_t index = rows->buffer_index[row], offset = rows->offsets[row], length = rows->lengths[row];
        if (index < 0 || index >= rows->buffer_count || offset < 0 || length < 0) return row;
        if ((__int128)offset + length > rows->buffers[index].size) return row;
    }
    return -1;
}

static int64_t size_of(const struct sr_rows *rows) {
    __int128 size = 0;
    for (int64_t row = 0; row < rows->count; row++) size += rows->lengths[row];
    return size + (__int128)16 * rows->count > INT64_MAX ? -1 : (int64_t)size;
}

static void check_gathering(const struct sr_rows *rows) {
    const int64_t size = sr_rows_size(rows);
    uint8_t *values = exactly_items(size, 1), *frames = exactly_items(size + 16 * rows->count, 1);
    int64_t *offsets = exactly_items(rows->count + 1, sizeof *offsets), end = 0;
    sr_gather(rows, values, offsets);
    sr_frame_rows(rows, frames);
    for (int64_t row = 0; row < rows->count; row++) {
        const size_t length = (size_t)rows->lengths[row];
        CHECK(offsets[row] == end);
        CHECK(!length || !memcmp(values + end, sr_row(rows, row), length));
        CHECK(!length || !memcmp(frames + end + 16 * row + SR_HEADER, sr_row(rows, row), length));
        end += rows->lengths[row];
    }
    CHECK(offsets[rows->count] == end && end == size);
    free(values);
    free(frames);
    free(offsets);
}

static bool all_are_there(const struct sr_rows *rows) {
    for (int64_t row = 0; row < rows->count; row++)
        if (rows->buffers[rows->buffer_index[row]].size > UINT8_MAX) return false;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, size};
    struct sr_buffer buffers[MOST_BUFFERS];
    const int64_t buffer_count = (int64_t)take_below(&input, MOST_BUFFERS + 1);
    const int64_t count = (int64_t)take_below(&input, MOST_ROWS + 1);
    int32_t *index = exactly_items(count, sizeof *index);
    int64_t *offsets = exactly_items(count, sizeof *offsets), *lengths = exactly_items(count, sizeof *lengths);
    for (int64_t row = 0; row < count; row++) {
        const uint8_t choice = take_byte(&input);
        index[row] = choice < 0xf8 ? choice % MOST_BUFFERS : (int32_t)take_number(&input, 4);
        offsets[row] = take_position(&input);
        lengths[row] = take_position(&input);
    }
    for (int64_t k = 0; k < buffer_count; k++) {
        const uint8_t there = take_byte(&input);
        const bool is_there = there < 0xc0; /* else it is only said to be as large as that */
        buffers[k].size = is_there ? there : take_position(&input);
        if (buffers[k].size < 0) buffers[k].size = INT64_MAX;
        uint8_t *bytes = exactly(is_there ? there : 0);
        for (size_t j = 0; is_there && j < there; j++) bytes[j] = take_front(&input);
        if (!is_there && buffers[k].size <= UINT8_MAX) buffers[k].size = UINT8_MAX + 1;
        buffers[k].data = bytes;
    }
    const struct sr_rows rows = {buffers, buffer_count, index, offsets, lengths, count};
    const int64_t outside = sr_row_outside(&rows);
    CHECK(outside == first_outside(&rows));
    if (outside < 0) {
        CHECK(sr_rows_size(&rows) == size_of(&rows));
        if (all_are_there(&rows)) check_gathering(&rows);
    }
    for (int64_t k = 0; k < buffer_count; k++) free((void *)buffers[k].data);
    free(index);
    free(offsets);
    free(lengths);
    return 0;
}
