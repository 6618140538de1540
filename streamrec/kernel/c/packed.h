/* Packed lists of varints: many at once. */
#ifndef SR_PACKED_H
#define SR_PACKED_H

#include "wire.h"

/* How many varints stand end to end in the bytes; -1 where they are none. */
int64_t sr_count_packed(const uint8_t *at, const uint8_t *end);

/* Decode them into `out`; returns where they end there, or NULL where they are none, or more than
   fit before `out_end`. */
typedef int64_t *sr_decode(const uint8_t *at, const uint8_t *end, int64_t *out, const int64_t *out_end);

/* The fastest way that the processor has. */
extern sr_decode *sr_decode_packed;

/* All ways, for tests: the first works everywhere; the others are NULL where the processor lacks them. */
enum { SR_PACKED_WAYS = 3 };
extern sr_decode *sr_packed_ways[SR_PACKED_WAYS];

/* Choose; once, before any other call. */
void sr_packed_init(void);

#if defined(__x86_64__)
/* By its vector units, in packed_x86.c. */
bool sr_has_avx2(void);
bool sr_has_vbmi2(void);
sr_decode sr_decode_avx2;
sr_decode sr_decode_vbmi2;
#endif

#endif
