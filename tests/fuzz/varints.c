/* Varints: rows of any integers, measured and written; read back they are the same. */
#include "varints.h"

#include "input.h"
#include "wire.h"

enum { MOST_ROWS = 8 };

/* Splits that rise within the values; or any, which must be refused. */
static bool take_splits(struct input *input, int64_t *splits, int64_t rows, int64_t count) {
    bool rise = true;
    for (int64_t row = 0; row <= rows; row++) {
        const uint8_t choice = take_byte(input);
        const int64_t before = row ? splits[row - 1] : 0;
        const int64_t room = rise ? count - before : 0;
        splits[row] = choice < 0xf8 && rise ? before + choice % (room + 1) : (int64_t)take_number(input, 8);
        rise &= splits[row] >= before && splits[row] <= count;
    }
    return rise;
}

static void check_rows(const int64_t *values, const int64_t *splits, int64_t rows, int64_t change) {
    int64_t *offsets = exactly_items(rows + 1, sizeof *offsets);
    sr_varint_offsets(values, splits, rows, offsets);
    const int64_t size = offsets[rows] + change;
    uint8_t *out = exactly((size_t)(size < 0 ? 0 : size));
    const bool done = sr_put_varints(values, splits[0], splits[rows], out, size < 0 ? 0 : size);
    CHECK(done == (size == offsets[rows]) || (size < 0 && !offsets[rows]));
    for (int64_t row = 0; done && size >= 0 && row < rows; row++) {
        const uint8_t *at = out + offsets[row], *const end = out + offsets[row + 1];
        for (int64_t k = splits[row]; k < splits[row + 1]; k++) {
            uint64_t value;
            at = sr_read_varint(at, end, &value);
            CHECK(at && value == (uint64_t)values[k]);
        }
        CHECK(at == end);
    }
    free(out);
    free(offsets);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, size};
    const int64_t rows = (int64_t)take_below(&input, MOST_ROWS + 1);
    const int64_t change = (int64_t)take_below(&input, 3) - 1; /* as if values had changed meanwhile */
    int64_t splits[MOST_ROWS + 1];
    const size_t steering = (MOST_ROWS + 1) * 9;
    const int64_t count = input.size > steering ? (int64_t)((input.size - steering) / 8) : 0;
    int64_t *values = exactly_items(count, sizeof *values);
    for (int64_t k = 0; k < count; k++)
        for (int byte = 0; byte < 8; byte++) ((uint8_t *)&values[k])[byte] = take_front(&input);
    const bool rise = take_splits(&input, splits, rows, count);
    CHECK(sr_splits_rise(splits, rows, count) == rise);
    if (rise) check_rows(values, splits, rows, change);
    free(values);
    return 0;
}
