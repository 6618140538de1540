/* CRC32C (Castagnoli; RFC 3720, appendix B.4), as fast as the processor has it. */
#ifndef SR_CRC32C_H
#define SR_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The CRC of `size` bytes; `crc` is that of the bytes before them, 0 at the begin. */
uint32_t sr_crc32c(uint32_t crc, const uint8_t *data, size_t size);

/* Which of the ways below runs: "sse4.2", "armv8" or "table". */
const char *sr_crc32c_name(void);

/* Make the tables and choose a way; once, before any other call. */
void sr_crc32c_init(void);

/* By tables alone, whatever the processor has: what the other ways are tested against. */
uint32_t sr_crc32c_by_table(uint32_t crc, const uint8_t *data, size_t size);

/* The CRC of bytes that hold a CRC is a weak check, so TFRecord stores CRCs rotated and shifted.
   Source of the constant: tensorflow/core/lib/hash/crc32c.h, kMaskDelta. */
static inline uint32_t sr_mask(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

#endif
