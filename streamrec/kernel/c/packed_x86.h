/* Packed lists of varints by the vector units of x86-64. */
#ifndef SR_PACKED_X86_H
#define SR_PACKED_X86_H

#include "packed.h"

#if defined(__x86_64__)
#define SR_PACKED_X86 1

bool sr_has_avx2(void);
bool sr_has_vbmi2(void);

sr_decode sr_decode_avx2;
sr_decode sr_decode_vbmi2;

#endif
#endif
