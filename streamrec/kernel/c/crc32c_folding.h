/* CRC32C by the carry-less multiplication of x86-64's vector units. */
#ifndef SR_CRC32C_FOLDING_H
#define SR_CRC32C_FOLDING_H

#include <stdbool.h>

#include "crc32c.h"

#if defined(__x86_64__)
#define SR_CRC32C_FOLDING 1

bool sr_has_folding(void);

/* What bytes come to that are fewer than one block. */
extern sr_crc32c_compute *sr_crc32c_of_rest;

sr_crc32c_compute sr_crc32c_by_folding;

/* Compute the constants; `times_x` multiplies by x, modulo the polynomial. */
void sr_folding_init(uint32_t (*times_x)(uint32_t));

#endif
#endif
