#include "frames.h"

#include "crc32c.h"
#include "memory.h"

/* What takes microseconds, as handing the interpreter over and getting it back does. */
enum { MANY_BYTES = 1 << 15, MANY_FRAMES = 256 };

static bool length_is_intact(const uint8_t *header) {
    return sr_mask(sr_crc32c(0, header, 8)) == sr_load32(header + 8);
}

static bool payload_is_intact(const uint8_t *payload, uint64_t length) {
    return sr_mask(sr_crc32c(0, payload, length)) == sr_load32(payload + length);
}

/* The size of a whole frame, or INT64_MAX where int64 cannot hold it. */
static int64_t frame_size(uint64_t length) {
    const uint64_t most = (uint64_t)INT64_MAX - SR_HEADER - SR_FOOTER;
    return length > most ? INT64_MAX : (int64_t)length + SR_HEADER + SR_FOOTER;
}

struct sr_scan sr_scan_frames(const uint8_t *buffer, int64_t begin, int64_t end, bool check_crc, int64_t large,
                              int64_t *offsets, int64_t *lengths, int64_t capacity) {
    struct sr_scan scan = {0, begin, 0, SR_NONE};
    while (scan.records < capacity && end - scan.stop >= SR_HEADER) {
        const uint8_t *header = buffer + scan.stop;
        const uint64_t length = sr_load64(header);
        if (check_crc && SR_UNLIKELY(!length_is_intact(header))) {
            scan.fault = SR_LENGTH_CRC;
            break;
        }
        const int64_t size = frame_size(length);
        /* By now the length matches its CRC, if CRCs are checked: `needed` is no guess then. */
        if (SR_UNLIKELY(size > end - scan.stop)) {
            scan.needed = size;
            break;
        }
        /* The size fits the buffer, so that the cast keeps the length. */
        const bool check_payload = check_crc && (int64_t)length < large;
        if (check_payload && SR_UNLIKELY(!payload_is_intact(header + SR_HEADER, length))) {
            scan.fault = SR_DATA_CRC;
            break;
        }
        offsets[scan.records] = scan.stop + SR_HEADER;
        lengths[scan.records++] = (int64_t)length;
        scan.stop += size;
    }
    return scan;
}

bool sr_scan_is_long(const uint8_t *buffer, int64_t begin, int64_t end, bool check_crc, int64_t large) {
    if (end - begin < MANY_BYTES) return false;
    const int64_t size = frame_size(sr_load64(buffer + begin));
    return (end - begin) / size >= MANY_FRAMES || (check_crc && size - SR_HEADER - SR_FOOTER < large);
}

int64_t sr_large_row(const struct sr_rows *rows, int64_t row, int64_t large) {
    for (; row < rows->count; row++)
        if (rows->lengths[row] >= large) return row;
    return -1;
}

static bool row_is_intact(const struct sr_rows *rows, int64_t row) {
    const int64_t size = rows->buffers[rows->buffer_index[row]].size, length = rows->lengths[row];
    return size - rows->offsets[row] - length >= SR_FOOTER && payload_is_intact(sr_row(rows, row), (uint64_t)length);
}

int64_t sr_corrupt_row(const struct sr_rows *rows, int64_t large) {
    for (int64_t row = sr_large_row(rows, 0, large); row >= 0; row = sr_large_row(rows, row + 1, large))
        if (SR_UNLIKELY(!row_is_intact(rows, row))) return row;
    return -1;
}

void sr_frame(uint8_t *payload, int64_t length) {
    uint8_t *const out = payload - SR_HEADER;
    sr_store64(out, (uint64_t)length);
    /* The CRC is of the eight bytes that were just written. */
    sr_store32(out + 8, sr_mask(sr_crc32c(0, out, 8)));
    sr_store32(payload + length, sr_mask(sr_crc32c(0, payload, (size_t)length)));
}

void sr_frame_rows(const struct sr_rows *rows, uint8_t *out) {
    for (int64_t row = 0; row < rows->count; row++) {
        const int64_t length = rows->lengths[row];
        sr_copy(out + SR_HEADER, sr_row(rows, row), (size_t)length);
        sr_frame(out + SR_HEADER, length);
        out += SR_HEADER + length + SR_FOOTER;
    }
}
