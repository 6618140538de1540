#include "crc32c_folding.h"

#ifdef SR_CRC32C_FOLDING

#include <immintrin.h>

#include "memory.h"

#define FOLDING __attribute__((target("avx512f,vpclmulqdq,pclmul")))

/* A message is a polynomial over GF(2), its first bit that of the highest power; what it comes to
   does not change when a part is replaced by another that leaves the same remainder. So a block of
   256 bytes is multiplied into the next one: each word of 64 bits by what is left of the power of x
   by which it stands higher. Source: Gopal et al., "Fast CRC Computation for Generic Polynomials
   Using PCLMULQDQ Instruction", Intel, 2009.

   Measured on Zen 5, pictures of 110 KB: from memory 37 GB/s, and 16 by steps of the CRC. */
enum { LANE = 64, LANES = 4, BLOCK = LANES * LANE, AHEAD = 4096 };

sr_crc32c_compute *sr_crc32c_of_rest;

/* For the first and the second word of each 128 bits. */
static uint64_t first_word, second_word;

bool sr_has_folding(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("pclmul");
}

/* x^n, its bits reversed as in the CRC, at the upper end of a word. */
static uint64_t power(int n, uint32_t (*times_x)(uint32_t)) {
    uint32_t value = 1u << 31;
    while (n--) value = times_x(value);
    return (uint64_t)value << 32;
}

/* One less than they stand higher: of reversed bits the product is shifted by one. */
void sr_folding_init(uint32_t (*times_x)(uint32_t)) {
    first_word = power(8 * BLOCK + 63, times_x);
    second_word = power(8 * BLOCK - 1, times_x);
}

FOLDING static inline __m512i folded(__m512i lane, __m512i words, const uint8_t *next) {
    const __m512i first = _mm512_clmulepi64_epi128(lane, words, 0x00);
    const __m512i second = _mm512_clmulepi64_epi128(lane, words, 0x11);
    return _mm512_xor_si512(_mm512_xor_si512(first, second), _mm512_loadu_si512(next));
}

FOLDING uint32_t sr_crc32c_by_folding(uint32_t crc, const uint8_t *data, size_t size) {
    if (size < 2 * BLOCK) return sr_crc32c_of_rest(crc, data, size);
    const __m512i words = _mm512_broadcast_i32x4(_mm_set_epi64x((int64_t)second_word, (int64_t)first_word));
    __m512i lanes[LANES];
    for (int k = 0; k < LANES; k++) lanes[k] = _mm512_loadu_si512(data + k * LANE);
    lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    for (data += BLOCK, size -= BLOCK; size >= BLOCK; data += BLOCK, size -= BLOCK)
        for (int k = 0; k < LANES; k++) {
            sr_prefetch(data + k * LANE, AHEAD);
            lanes[k] = folded(lanes[k], words, data + k * LANE);
        }
    uint8_t block[BLOCK];
    for (int k = 0; k < LANES; k++) _mm512_storeu_si512(block + k * LANE, lanes[k]);
    const uint32_t of_nothing_before = ~0u; /* it has gone into the first lane */
    return sr_crc32c_of_rest(sr_crc32c_of_rest(of_nothing_before, block, BLOCK), data, size);
}

#endif
