/* CRC32C (Castagnoli; RFC 3720, appendix B.4), as fast as the processor has it. */
#ifndef SR_CRC32C_H
#define SR_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The CRC of `size` bytes; `crc` is that of the bytes before them, 0 at the begin. */
typedef uint32_t sr_crc32c_compute(uint32_t crc, const uint8_t *data, size_t size);

/* The fastest way that the processor has. */
sr_crc32c_compute sr_crc32c;

/* All ways, for tests: the first works everywhere; the others are NULL where the processor lacks them. */
enum { SR_CRC32C_WAYS = 3 };
extern sr_crc32c_compute *sr_crc32c_ways[SR_CRC32C_WAYS];

/* Make the tables and choose a way; once, before any other call. */
void sr_crc32c_init(void);

/* The CRC of bytes that hold a CRC is a weak check, so TFRecord stores CRCs rotated and shifted.
   Source of the constant: tensorflow/core/lib/hash/crc32c.h, kMaskDelta. */
static inline uint32_t sr_mask(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

#endif
