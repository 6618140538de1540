/* TFRecord frames: uint64 length, uint32 masked CRC32C of these 8 bytes, the payload, uint32 masked
   CRC32C of the payload; little-endian. Source: tensorflow/core/lib/io/record_writer.h. */
#ifndef SR_FRAMES_H
#define SR_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "rows.h"

enum { SR_HEADER = 12, SR_FOOTER = 4 };

struct sr_scan {
    int64_t records;      /* found */
    int64_t stop;         /* the first byte not consumed */
    int64_t needed;       /* the size of the frame at `stop` if its header is there, else 0 */
    enum sr_fault fault;  /* of the frame at `stop` */
};

/* Find the frames in buffer[begin:end], at most `capacity` of them; offsets and lengths are those of
   the payloads. With `check_crc`, lengths are checked, and payloads of less than `large` bytes. Needs
   0 <= begin <= end <= INT64_MAX. */
struct sr_scan sr_scan_frames(const uint8_t *buffer, int64_t begin, int64_t end, bool check_crc, int64_t large,
                              int64_t *offsets, int64_t *lengths, int64_t capacity);

/* Whether such a scan may take long, by its first frame: not where it reads few bytes, or little more
   than the headers of few frames. Needs 0 <= begin <= end <= INT64_MAX. */
bool sr_scan_is_long(const uint8_t *buffer, int64_t begin, int64_t end, bool check_crc, int64_t large);

/* The next row from `row` on of at least `large` bytes, or -1. */
int64_t sr_large_row(const struct sr_rows *rows, int64_t row, int64_t large);

/* The first row of at least `large` bytes that does not match the CRC behind it in its buffer, or
   behind which there is none; else -1. */
int64_t sr_corrupt_row(const struct sr_rows *rows, int64_t large);

/* Write the frame around a payload, in the SR_HEADER bytes before it and the SR_FOOTER behind it. */
void sr_frame(uint8_t *payload, int64_t length);

/* Write the frames of all rows end to end: their lengths and SR_HEADER + SR_FOOTER bytes each. */
void sr_frame_rows(const struct sr_rows *rows, uint8_t *out);

#endif
