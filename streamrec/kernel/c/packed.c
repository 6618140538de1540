#include "packed.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Bytes that are looked at together, and those after them that a load may touch. */
enum { BLOCK = 64, SLACK = 8, LONGEST = 10 };

/* Bit k: the top bit of byte k of 64. */
static inline uint64_t top_bits_of(const uint8_t *at) {
    uint64_t bits = 0;
#if defined(__SSE2__)
    for (int k = 0; k < BLOCK; k += 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(at + k));
        bits |= (uint64_t)(uint32_t)_mm_movemask_epi8(bytes) << k;
    }
#else
    for (int k = 0; k < BLOCK; k += 8)
        bits |= ((sr_load64(at + k) & SR_TOP_BITS) * 0x0002040810204081u) >> 56 << k;
#endif
    return bits;
}

/* Whether ten bytes in a row have their top bit set: then they begin no varint. */
static bool has_overlong(uint64_t top_bits) {
    uint64_t runs = top_bits & top_bits >> 1;
    runs &= runs >> 2;
    runs &= runs >> 4;
    return runs & top_bits >> 8 & top_bits >> 9;
}

int64_t sr_count_packed(const uint8_t *at, const uint8_t *end) {
    int64_t count = 0;
    /* Blocks overlap by nine bytes: ten that begin in one are seen whole. */
    for (; end - at >= BLOCK; at += BLOCK - LONGEST + 1) {
        const uint64_t top_bits = top_bits_of(at);
        if (SR_UNLIKELY(top_bits && has_overlong(top_bits))) return -1;
        /* The ends in the bytes that the next block does not see again. */
        count += __builtin_popcountll(~top_bits & (UINT64_MAX >> (LONGEST - 1)));
    }
    int run = 0;
    for (; at < end; at++) {
        run = *at & 128 ? run + 1 : 0;
        count += !run;
        if (run == LONGEST) return -1;
    }
    /* The last varint goes on, and nothing follows. */
    return run ? -1 : count;
}

static int64_t *decode_singly(const uint8_t *at, const uint8_t *end, int64_t *out, const int64_t *out_end) {
    while (at < end) {
        uint64_t value = 0;
        if (out == out_end || !(at = sr_read_varint(at, end, &value))) return NULL;
        *out++ = (int64_t)value;
    }
    return out;
}

/* The varints that end in the 64 bytes of a block; `*used` becomes what they take of it. */
static int64_t *decode_block(const uint8_t *at, const uint8_t *end, int64_t *out, unsigned *used) {
    unsigned begin = 0;
    for (uint64_t ends = ~top_bits_of(at); ends; ends &= ends - 1) {
        const unsigned size = (unsigned)__builtin_ctzll(ends) + 1 - begin;
        uint64_t value = 0;
        if (SR_LIKELY(size <= 8))
            value = sr_varint_of_word(sr_load64(at + begin), size);
        else if (!sr_read_varint(at + begin, end, &value))
            return NULL;
        *out++ = (int64_t)value;
        begin += size;
    }
    *used = begin;
    return begin ? out : NULL;
}

static int64_t *decode_by_words(const uint8_t *at, const uint8_t *end, int64_t *out, const int64_t *out_end) {
    /* A block has up to 64 values, and its last word may begin at its last byte. */
    while (end - at >= BLOCK + SLACK && out_end - out >= BLOCK) {
        unsigned used = 0;
        out = decode_block(at, end, out, &used);
        if (!out) return NULL;
        at += used; /* what is unfinished belongs to the next block */
    }
    return decode_singly(at, end, out, out_end);
}

sr_decode *sr_decode_packed = decode_by_words;

/* By words, AVX2, VBMI2. */
sr_decode *sr_packed_ways[SR_PACKED_WAYS] = {decode_by_words};

void sr_packed_init(void) {
#if defined(__x86_64__)
    if (sr_has_avx2()) sr_packed_ways[1] = sr_decode_avx2;
    if (sr_has_vbmi2()) sr_packed_ways[2] = sr_decode_vbmi2;
#endif
    for (int k = 0; k < SR_PACKED_WAYS; k++)
        if (sr_packed_ways[k]) sr_decode_packed = sr_packed_ways[k];
}
