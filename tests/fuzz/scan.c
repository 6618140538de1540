/* Frames: a scan of any part of any bytes against a plain one, the same in small pieces, the check of
   payloads that a scan left, and frames that are written against those that were found. */
#include "crc32c.h"
#include "frames.h"
#include "input.h"
#include "memory.h"

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    sr_crc32c_init();
    return 0;
}

static uint32_t masked(const uint8_t *data, size_t size) { return sr_mask(sr_crc32c_ways[0](0, data, size)); }

/* No input comes past a CRC by chance: make frames of the bytes, most of them whole, as steered. */
static void repair(uint8_t *at, uint8_t *end, struct input *input) {
    while (end - at >= SR_HEADER) {
        const uint8_t choice = take_byte(input);
        const uint64_t room = (uint64_t)(end - at) - SR_HEADER;
        if (choice < 0xe0) sr_store64(at, room > SR_FOOTER ? sr_load64(at) % (room - SR_FOOTER + 1) : 0);
        if (choice & 15) sr_store32(at + 8, masked(at, 8));
        const uint64_t length = sr_load64(at);
        if (room < SR_FOOTER || length > room - SR_FOOTER) return;
        uint8_t *payload = at + SR_HEADER;
        if (choice & 0x70) sr_store32(payload + length, masked(payload, length));
        at = payload + length + SR_FOOTER;
    }
}

struct frames {
    struct sr_scan scan;
    int64_t *offsets, *lengths;
};

static void release(struct frames *frames) {
    free(frames->offsets);
    free(frames->lengths);
}

/* The scan as its header describes it. */
static struct frames scan_plainly(const uint8_t *buffer, int64_t begin, int64_t end, bool check_crc, int64_t large) {
    const int64_t most = (end - begin) / (SR_HEADER + SR_FOOTER) + 1;
    struct frames found = {{0, begin, 0, SR_NONE}, exactly_items(most, 8), exactly_items(most, 8)};
    struct sr_scan *scan = &found.scan;
    while (end - scan->stop >= SR_HEADER) {
        const uint8_t *header = buffer + scan->stop, *payload = header + SR_HEADER;
        const uint64_t length = sr_load64(header), left = (uint64_t)(end - scan->stop);
        const bool is_whole = left >= SR_HEADER + SR_FOOTER && length <= left - SR_HEADER - SR_FOOTER;
        if (check_crc && sr_load32(header + 8) != masked(header, 8)) {
            scan->fault = SR_LENGTH_CRC;
            return found;
        }
        if (!is_whole) {
            const __int128 size = (__int128)length + SR_HEADER + SR_FOOTER;
            scan->needed = size > INT64_MAX ? INT64_MAX : (int64_t)size;
            return found;
        }
        if (check_crc && (int64_t)length < large && sr_load32(payload + length) != masked(payload, length)) {
            scan->fault = SR_DATA_CRC;
            return found;
        }
        found.offsets[scan->records] = scan->stop + SR_HEADER;
        found.lengths[scan->records++] = (int64_t)length;
        scan->stop += SR_HEADER + (int64_t)length + SR_FOOTER;
    }
    return found;
}

/* Scan with room for so many, and see that it is what the plain scan found, up to there. */
static struct sr_scan check_scan(const uint8_t *buffer, int64_t begin, int64_t end, bool check_crc, int64_t large,
                                 int64_t capacity, const struct frames *expected, int64_t first) {
    int64_t *offsets = exactly_items(capacity, 8), *lengths = exactly_items(capacity, 8);
    const struct sr_scan scan = sr_scan_frames(buffer, begin, end, check_crc, large, offsets, lengths, capacity);
    const int64_t left = expected->scan.records - first;
    CHECK(scan.records == (left < capacity ? left : capacity));
    for (int64_t k = 0; k < scan.records; k++)
        CHECK(offsets[k] == expected->offsets[first + k] && lengths[k] == expected->lengths[first + k]);
    const bool is_full = scan.records == capacity;
    CHECK(scan.fault == (is_full ? SR_NONE : expected->scan.fault));
    CHECK(scan.needed == (is_full ? 0 : expected->scan.needed));
    const int64_t last = first + scan.records - 1;
    CHECK(scan.stop == (scan.records ? expected->offsets[last] + expected->lengths[last] + SR_FOOTER : begin));
    free(offsets);
    free(lengths);
    return scan;
}

static void check_in_pieces(const uint8_t *buffer, int64_t begin, int64_t end, bool check_crc, int64_t large,
                            int64_t capacity, const struct frames *expected) {
    int64_t records = 0;
    for (int64_t more = capacity; more == capacity; records += more) {
        const struct sr_scan scan = check_scan(buffer, begin, end, check_crc, large, capacity, expected, records);
        more = scan.records;
        begin = scan.stop;
    }
    CHECK(records == expected->scan.records && begin == expected->scan.stop);
}

/* The rows that were found, and after them what is left of the buffer, behind which is no CRC. */
static void check_corrupt_row(const uint8_t *buffer, int64_t size, int64_t large, const struct frames *found) {
    const int64_t count = found->scan.records + 1;
    int32_t *index = exactly_items(count, sizeof *index);
    int64_t *offsets = exactly_items(count, 8), *lengths = exactly_items(count, 8);
    int64_t expected = -1;
    for (int64_t k = 0; k < count; k++) {
        const bool is_last = k == count - 1;
        index[k] = 0;
        offsets[k] = is_last ? found->scan.stop : found->offsets[k];
        lengths[k] = is_last ? size - found->scan.stop : found->lengths[k];
        const uint8_t *payload = buffer + offsets[k];
        const bool is_corrupt = is_last || sr_load32(payload + lengths[k]) != masked(payload, (size_t)lengths[k]);
        if (expected < 0 && lengths[k] >= large && is_corrupt) expected = k;
    }
    const struct sr_buffer buffers[] = {{buffer, size}};
    const struct sr_rows rows = {buffers, 1, index, offsets, lengths, count};
    CHECK(sr_row_outside(&rows) == -1);
    CHECK(sr_corrupt_row(&rows, large) == expected);
    free(index);
    free(offsets);
    free(lengths);
}

/* Frames of the payloads: where all CRCs were checked just the bytes that were scanned. */
static void check_writing(const uint8_t *buffer, int64_t begin, int64_t size, bool check_crc,
                          const struct frames *found) {
    const int64_t count = found->scan.records, written = found->scan.stop - begin;
    int32_t *index = exactly_items(count, sizeof *index);
    uint8_t *out = exactly_items(written, 1);
    for (int64_t k = 0; k < count; k++) index[k] = 0;
    const struct sr_buffer buffers[] = {{buffer, size}};
    const struct sr_rows rows = {buffers, 1, index, found->offsets, found->lengths, count};
    CHECK(sr_row_outside(&rows) == -1);
    CHECK(sr_rows_size(&rows) == written - count * (SR_HEADER + SR_FOOTER));
    sr_frame_rows(&rows, out);
    CHECK(!check_crc || !written || !memcmp(out, buffer + begin, (size_t)written));
    struct frames again = scan_plainly(out, 0, written, true, INT64_MAX);
    CHECK(again.scan.records == count && again.scan.stop == written && again.scan.fault == SR_NONE);
    check_scan(out, 0, written, true, INT64_MAX, count + 1, &again, 0);
    for (int64_t k = 0; k < count; k++) {
        const size_t length = (size_t)again.lengths[k];
        CHECK(again.lengths[k] == found->lengths[k]);
        CHECK(!length || !memcmp(out + again.offsets[k], buffer + found->offsets[k], length));
    }
    release(&again);
    free(out);
    free(index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, size};
    const uint8_t choice = take_byte(&input);
    const bool check_crc = choice & 1;
    const int64_t capacity = 1 + (int64_t)take_below(&input, 8);
    const size_t cut_front = choice & 2 ? take_byte(&input) : 0, cut_back = choice & 4 ? take_byte(&input) : 0;
    const int64_t large = choice & 16 ? (int64_t)take_byte(&input) : INT64_MAX;
    struct input steering = input; /* repairs depend on bytes that they may change: they are read twice */
    const int64_t length = (int64_t)input.size;
    const int64_t begin = cut_front < input.size ? (int64_t)cut_front : length;
    const int64_t end = length - begin > (int64_t)cut_back ? length - (int64_t)cut_back : length;
    /* What is beyond the end may not be read: it is not there. */
    uint8_t *buffer = copy_of(input.data, (size_t)end);
    if (choice & 8) repair(buffer + begin, buffer + end, &steering);

    struct frames expected = scan_plainly(buffer, begin, end, check_crc, large);
    check_scan(buffer, begin, end, check_crc, large, expected.scan.records + 1, &expected, 0);
    check_scan(buffer, begin, end, check_crc, large, expected.scan.records, &expected, 0);
    check_in_pieces(buffer, begin, end, check_crc, large, capacity, &expected);
    check_corrupt_row(buffer, end, large == INT64_MAX ? 0 : large, &expected);
    check_writing(buffer, begin, end, check_crc && large == INT64_MAX, &expected);
    release(&expected);
    free(buffer);
    return 0;
}
