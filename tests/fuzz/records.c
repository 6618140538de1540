/* Messages from columns of any values, splits, heads and missing rows, in blocks of any size: they
   are as plainer code writes them, from the last byte to the first. */
#include "records.h"

#include "crc32c.h"
#include "frames.h"
#include "input.h"
#include "memory.h"
#include "varints.h"

enum { MOST_FIELDS = 3, MOST_ROWS = 6, MOST_BYTES = 1 << 15 };

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    sr_crc32c_init();
    return 0;
}

/* Bytes that grow towards the front. */
struct plain {
    uint8_t bytes[MOST_BYTES];
    int64_t begin;
};

static void put_before(struct plain *plain, const void *data, int64_t size) {
    CHECK(size <= plain->begin);
    plain->begin -= size;
    sr_copy(plain->bytes + plain->begin, data, (size_t)size);
}

static void put_number_before(struct plain *plain, uint64_t number) {
    uint8_t octets[10];
    int64_t size = 0;
    for (; number > 127; number >>= 7) octets[size++] = (uint8_t)(number | 128);
    octets[size++] = (uint8_t)number;
    put_before(plain, octets, size);
}

static void put_head_before(struct plain *plain, struct sr_octets head, int64_t end) {
    put_number_before(plain, (uint64_t)(end - plain->begin));
    put_before(plain, head.data, head.size);
}

/* Whether the row's splits rise within the values. */
static bool put_values_before(struct plain *plain, const struct sr_field *field, int64_t row) {
    if (field->form == SR_TEXTS) {
        put_before(plain, field->texts[row].data, field->texts[row].size);
        return true;
    }
    const int64_t first = field->splits[row], last = field->splits[row + 1];
    if (first < 0 || last < first || field->count < last) return false;
    if (field->form == SR_ITEMS) put_before(plain, field->values + first * field->width, (last - first) * field->width);
    else
        for (int64_t k = last; k-- > first;) put_number_before(plain, sr_load64(field->values + 8 * k));
    return true;
}

static bool put_field_before(struct plain *plain, const struct sr_field *field, int64_t row) {
    if (field->missing && field->missing[row]) return true;
    const int64_t end = plain->begin;
    if (!put_values_before(plain, field, row)) return false;
    const bool omitted = field->omits_last && plain->begin == end;
    for (int k = field->head_count - omitted; k-- > 0;) put_head_before(plain, field->heads[k], end);
    return true;
}

static bool put_message(struct plain *plain, const struct sr_message *message, int64_t row) {
    plain->begin = MOST_BYTES;
    for (int64_t k = message->field_count; k-- > 0;)
        if (!put_field_before(plain, &message->fields[k], row)) return false;
    if (message->head.size) put_head_before(plain, message->head, MOST_BYTES);
    return true;
}

static void check_frame(const uint8_t *frame, int64_t length) {
    CHECK(sr_load64(frame) == (uint64_t)length);
    CHECK(sr_load32(frame + 8) == sr_mask(sr_crc32c(0, frame, 8)));
    const uint8_t *payload = frame + SR_HEADER;
    CHECK(sr_load32(payload + length) == sr_mask(sr_crc32c(0, payload, (size_t)length)));
}

static void check_row(const struct plain *plain, const uint8_t *out, int64_t size, bool framed) {
    const int64_t length = MOST_BYTES - plain->begin;
    CHECK(size == length + (framed ? SR_HEADER + SR_FOOTER : 0));
    CHECK(!length || !memcmp(out + (framed ? SR_HEADER : 0), plain->bytes + plain->begin, (size_t)length));
    if (framed) check_frame(out, length);
}

/* Check the rows of a block, and what is said of the next one. */
static void check_block(const struct sr_message *message, int64_t first, struct sr_joined joined, const uint8_t *out,
                        int64_t room, const int64_t *offsets, bool framed) {
    static struct plain plain;
    const int64_t next = first + joined.rows;
    CHECK(offsets[0] == 0 && next <= message->rows);
    CHECK(offsets[joined.rows] <= joined.rows * (sr_most(message) + (framed ? SR_HEADER + SR_FOOTER : 0)));
    for (int64_t k = 0; k < joined.rows; k++) {
        CHECK(put_message(&plain, message, first + k));
        check_row(&plain, out + offsets[k], offsets[k + 1] - offsets[k], framed);
    }
    const bool rises = next == message->rows || put_message(&plain, message, next);
    CHECK(joined.fault == (rises ? SR_JOINED : SR_SPLITS_FALL));
    if (!rises || next == message->rows) return;
    CHECK(joined.needed == MOST_BYTES - plain.begin + (framed ? SR_HEADER + SR_FOOTER : 0));
    CHECK(joined.needed > room - offsets[joined.rows]);
}

static void check_measured(const struct sr_message *message, int64_t first, struct sr_joined joined,
                           const int64_t *offsets, bool framed) {
    const int64_t rows = message->rows - first;
    int64_t *measured = exactly_items(rows + 1, sizeof *measured);
    CHECK(sr_join(message, first, rows, framed, NULL, INT64_MAX, measured).rows >= joined.rows);
    CHECK(!memcmp(measured, offsets, (size_t)(joined.rows + 1) * sizeof *measured));
    free(measured);
}

static void check_message(const struct sr_message *message, bool framed, int64_t room) {
    struct sr_joined joined = {0, 0, SR_JOINED};
    int64_t first = 0, size = room;
    while (first < message->rows && joined.fault == SR_JOINED) {
        int64_t *offsets = exactly_items(message->rows - first + 1, sizeof *offsets);
        uint8_t *out = exactly((size_t)size);
        joined = sr_join(message, first, message->rows - first, framed, out, size, offsets);
        check_block(message, first, joined, out, size, offsets, framed);
        check_measured(message, first, joined, offsets, framed);
        first += joined.rows;
        size = joined.rows ? room : joined.needed;
        free(out);
        free(offsets);
    }
}

/* Integers that take another number of bytes than there is room for, as if they had changed since they
   were measured, are refused. */
static void check_changed(const struct sr_field *field, int64_t change) {
    if (field->form != SR_INTEGERS) return;
    const int64_t *values = (const int64_t *)(const void *)field->values;
    const int64_t measured = sr_varints_size(values, field->count);
    const int64_t room = measured + change < 0 ? 0 : measured + change;
    uint8_t *out = exactly((size_t)room);
    CHECK(sr_put_varints(values, field->count, out, room) == (room == measured));
    free(out);
}

static struct sr_octets take_octets(struct input *input, int64_t most) {
    const int64_t size = (int64_t)take_below(input, (uint64_t)most + 1);
    uint8_t *octets = exactly((size_t)size);
    for (int64_t k = 0; k < size; k++) octets[k] = take_front(input);
    return (struct sr_octets){octets, size};
}

/* Splits that rise within the values; or any. */
static const int64_t *take_splits(struct input *input, int64_t rows, int64_t count) {
    int64_t *splits = exactly_items(rows + 1, sizeof *splits), last = 0;
    for (int64_t row = 0; row <= rows; row++) {
        const uint8_t choice = take_byte(input);
        splits[row] = choice < 0xf8 ? last + choice % (count - last + 1) : (int64_t)take_number(input, 8);
        if (splits[row] >= 0 && splits[row] <= count) last = splits[row];
    }
    return splits;
}

static const struct sr_octets *take_texts(struct input *input, int64_t rows) {
    struct sr_octets *texts = exactly_items(rows, sizeof *texts);
    for (int64_t row = 0; row < rows; row++) texts[row] = take_octets(input, 30);
    return texts;
}

static const uint8_t *take_missing(struct input *input, int64_t rows) {
    uint8_t *missing = exactly((size_t)rows);
    for (int64_t row = 0; row < rows; row++) missing[row] = take_bool(input);
    return missing;
}

static struct sr_field take_field(struct input *input, int64_t rows) {
    static const int64_t widths[] = {1, 4, 8};
    struct sr_field field = {.form = (enum sr_form)take_below(input, 3)};
    const uint8_t choice = take_byte(input);
    field.head_count = choice % (SR_MOST_HEADS + 1);
    for (int k = 0; k < field.head_count; k++) field.heads[k] = take_octets(input, 3);
    field.omits_last = field.head_count && choice & 0x40;
    field.missing = choice & 0x80 ? take_missing(input, rows) : NULL;
    if (field.form == SR_TEXTS) {
        field.texts = take_texts(input, rows);
        return field;
    }
    field.width = field.form == SR_INTEGERS ? 8 : widths[take_below(input, 3)];
    const struct sr_octets values = take_octets(input, 255);
    field.values = values.data;
    field.count = values.size / field.width;
    field.splits = take_splits(input, rows, field.count);
    return field;
}

static void release_field(struct sr_field *field, int64_t rows) {
    for (int k = 0; k < field->head_count; k++) free((void *)field->heads[k].data);
    for (int64_t row = 0; field->texts && row < rows; row++) free((void *)field->texts[row].data);
    free((void *)field->texts);
    free((void *)field->missing);
    free((void *)field->values);
    free((void *)field->splits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, size};
    struct sr_field fields[MOST_FIELDS];
    const int64_t count = (int64_t)take_below(&input, MOST_FIELDS + 1), rows = (int64_t)take_below(&input, MOST_ROWS + 1);
    const bool framed = take_bool(&input);
    const int64_t room = take_byte(&input);
    const struct sr_octets head = take_octets(&input, 2);
    for (int64_t k = 0; k < count; k++) fields[k] = take_field(&input, rows);
    const struct sr_message message = {fields, count, rows, head};
    check_message(&message, framed, room);
    for (int64_t k = 0; k < count; k++) check_changed(&fields[k], room % 5 - 2);
    for (int64_t k = 0; k < count; k++) release_field(&fields[k], rows);
    free((void *)head.data);
    return 0;
}
