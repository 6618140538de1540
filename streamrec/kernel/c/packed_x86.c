/* Packed lists of varints by the vector units of x86-64. */
#include "packed.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,bmi,popcnt")))
#define VBMI2 __attribute__((target("avx512f,avx512bw,avx512vbmi,avx512vbmi2,bmi,popcnt")))

enum { BLOCK = 64, SLACK = 8, ALL_THREE = 0x80 }; /* the last: a truth table */

bool sr_has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi"); }

bool sr_has_vbmi2(void) {
    return sr_has_avx2() && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
}

/* Both ways find the ends of 64 bytes' varints as a bit mask, load the 8 bytes from each begin as a
   word, keep the bytes up to the first without a top bit, and push their groups of 7 bits together:
   pairs of bytes to 14 bits by one multiplication, pairs of these to 28 by another, and the two
   halves by a shift. Of a word, `ends` are the top bits that its bytes lack: none of them means that
   the varint is longer than a word. One less has all bits below the lowest of them, and above it
   none but top bits. */

AVX2 static inline __m256i compact_4(__m256i words, __m256i ends) {
    const __m256i before = _mm256_add_epi64(ends, _mm256_set1_epi64x(-1));
    __m256i own = _mm256_and_si256(words, _mm256_and_si256(before, _mm256_set1_epi64x((int64_t)~SR_TOP_BITS)));
    own = _mm256_maddubs_epi16(_mm256_set1_epi16((int16_t)0x8001), own);
    own = _mm256_madd_epi16(own, _mm256_set1_epi32(0x40000001));
    const __m256i low = _mm256_and_si256(own, _mm256_set1_epi64x(0x0fffffff));
    return _mm256_or_si256(low, _mm256_slli_epi64(_mm256_srli_epi64(own, 32), 28));
}

AVX2 static inline __m128i two_words(const uint8_t *first, const uint8_t *second) {
    const __m128i low = _mm_cvtsi64_si128((int64_t)sr_load64(first));
    return _mm_insert_epi64(low, (int64_t)sr_load64(second), 1);
}

AVX2 static bool decode_4(const uint8_t *const at[4], const uint8_t *end, int64_t *out) {
    const __m256i words = _mm256_set_m128i(two_words(at[2], at[3]), two_words(at[0], at[1]));
    const __m256i ends = _mm256_andnot_si256(words, _mm256_set1_epi64x((int64_t)SR_TOP_BITS));
    _mm256_storeu_si256((__m256i *)(void *)out, compact_4(words, ends));
    const __m256i lengthy = _mm256_cmpeq_epi64(ends, _mm256_setzero_si256());
    if (SR_LIKELY(_mm256_testz_si256(lengthy, lengthy))) return true;
    for (int k = 0; k < 4; k++)
        if (!sr_read_varint(at[k], end, (uint64_t *)out + k)) return false;
    return true;
}

AVX2 static inline uint64_t ends_avx2(const uint8_t *at) {
    const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)at);
    const __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(at + 32));
    return ~((uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32 | (uint32_t)_mm256_movemask_epi8(low));
}

AVX2 int64_t *sr_decode_avx2(const uint8_t *at, const uint8_t *end, int64_t *out, const int64_t *out_end) {
    while (end - at >= BLOCK + SLACK && out_end - out >= BLOCK) {
        const uint64_t ends = ends_avx2(at);
        /* Sixty-four bytes without an end: no varint is so long. */
        if (!ends) return NULL;
        /* Each begins behind the end before it, and the first at 0. */
        uint64_t begins = ends << 1 | 1;
        int count = __builtin_popcountll(ends);
        for (; count >= 4; count -= 4, out += 4) {
            const uint8_t *four[4];
            for (int k = 0; k < 4; k++, begins &= begins - 1) four[k] = at + __builtin_ctzll(begins);
            if (!decode_4(four, end, out)) return NULL;
        }
        for (; count; count--, begins &= begins - 1)
            if (!sr_read_varint(at + __builtin_ctzll(begins), end, (uint64_t *)out++)) return NULL;
        at += 64 - __builtin_clzll(ends);
    }
    /* The rest singly: loads and stores of whole blocks would pass the ends of memory. */
    return sr_packed_ways[0](at, end, out, out_end);
}

/* 0 to 63. */
VBMI2 static inline __m512i byte_numbers(void) {
    const __m512i words = _mm512_set_epi64(0x3838383838383838, 0x3030303030303030, 0x2828282828282828, 0x2020202020202020,
                                           0x1818181818181818, 0x1010101010101010, 0x0808080808080808, 0);
    return _mm512_add_epi8(words, _mm512_set1_epi64(0x0706050403020100));
}

VBMI2 static inline __m512i compact_8(__m512i words, __m512i ends) {
    const __m512i before = _mm512_add_epi64(ends, _mm512_set1_epi64(-1));
    __m512i own = _mm512_ternarylogic_epi64(words, before, _mm512_set1_epi64((int64_t)~SR_TOP_BITS), ALL_THREE);
    own = _mm512_maddubs_epi16(_mm512_set1_epi16((int16_t)0x8001), own);
    own = _mm512_madd_epi16(own, _mm512_set1_epi32(0x40000001));
    const __m512i low = _mm512_and_si512(own, _mm512_set1_epi64(0x0fffffff));
    return _mm512_or_si512(low, _mm512_slli_epi64(_mm512_srli_epi64(own, 32), 28));
}

/* Add the ninth and tenth bytes to the values of some lanes; whether that ends all of them. */
VBMI2 static inline bool add_rest(__mmask8 lanes, __m512i rest, __m512i *values) {
    const __m512i ninth = _mm512_slli_epi64(_mm512_and_si512(rest, _mm512_set1_epi64(0x7f)), 56);
    *values = _mm512_mask_or_epi64(*values, lanes, *values, ninth);
    lanes &= _mm512_test_epi64_mask(rest, _mm512_set1_epi64(0x80));
    const __m512i tenth = _mm512_slli_epi64(_mm512_srli_epi64(rest, 8), 63);
    *values = _mm512_mask_or_epi64(*values, lanes, *values, tenth);
    return !(lanes & _mm512_test_epi64_mask(rest, _mm512_set1_epi64(0x8000)));
}

/* Store what eight lanes hold from their words on; whether each of them is a varint. */
VBMI2 static inline bool decode_8(__m512i bytes, __m512i begins, __mmask8 lanes, int64_t *out) {
    const __m512i top_bits = _mm512_set1_epi64((int64_t)SR_TOP_BITS);
    const __m512i words = _mm512_permutexvar_epi8(begins, bytes);
    const __m512i ends = _mm512_andnot_si512(words, top_bits);
    __m512i values = compact_8(words, ends);
    const __mmask8 lengthy = lanes & _mm512_testn_epi64_mask(ends, ends);
    if (SR_UNLIKELY(lengthy)) {
        begins = _mm512_add_epi8(begins, _mm512_set1_epi8(8));
        if (!add_rest(lengthy, _mm512_permutexvar_epi8(begins, bytes), &values)) return false;
    }
    _mm512_mask_storeu_epi64(out, lanes, values);
    return true;
}

VBMI2 static inline __m512i fourfold(uint32_t bytes) { return _mm512_set1_epi32((int32_t)bytes); }

/* The values of sixteen varints of four bytes at most: words of four bytes do, in half the steps. */
VBMI2 static inline __m512i compact_16(__m512i words) {
    const __m512i ends = _mm512_andnot_si512(words, fourfold(0x80808080));
    const __m512i before = _mm512_add_epi32(ends, _mm512_set1_epi32(-1));
    __m512i own = _mm512_ternarylogic_epi32(words, before, fourfold(0x7f7f7f7f), ALL_THREE);
    own = _mm512_maddubs_epi16(_mm512_set1_epi16((int16_t)0x8001), own);
    return _mm512_madd_epi16(own, _mm512_set1_epi32(0x40000001));
}

/* Store sixteen values, of which those of some lanes are there; exactly, or room for all. */
VBMI2 static inline void store_16(__m512i values, __mmask16 lanes, int64_t *out) {
    const __m512i low = _mm512_cvtepu32_epi64(_mm512_castsi512_si256(values));
    const __m512i high = _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(values, 1));
    _mm512_mask_storeu_epi64(out, (__mmask8)lanes, low);
    _mm512_mask_storeu_epi64(out + 8, (__mmask8)(lanes >> 8), high);
}

/* Varints of four bytes at most. A store of all lanes is faster than one of some, where it may be. */
VBMI2 static inline void decode_short(__m512i bytes, __m512i begins, int count, int64_t *out, bool has_room) {
    __m512i which = _mm512_and_si512(_mm512_srli_epi64(byte_numbers(), 2), _mm512_set1_epi8(15)); /* word of each byte */
    for (int done = 0; done < count; done += 16) {
        const __m512i at = _mm512_add_epi8(_mm512_permutexvar_epi8(which, begins), fourfold(0x03020100));
        const __m512i values = compact_16(_mm512_permutexvar_epi8(at, bytes));
        const int left = count - done;
        if (SR_LIKELY(has_room)) store_16(values, 0xffff, out + done);
        else store_16(values, (__mmask16)(left >= 16 ? 0xffff : 0xffff >> (16 - left)), out + done);
        which = _mm512_add_epi8(which, _mm512_set1_epi8(16));
    }
}

/* Varints of any length; whether each is one. */
VBMI2 static inline bool decode_any(__m512i bytes, __m512i begins, int count, int64_t *out) {
    const __m512i within = _mm512_set1_epi64(0x0706050403020100);
    __m512i which = _mm512_and_si512(_mm512_srli_epi64(byte_numbers(), 3), _mm512_set1_epi8(7));
    for (int left = count; left > 0; left -= 8, out += 8) {
        const __mmask8 lanes = (__mmask8)(left >= 8 ? 0xff : 0xff >> (8 - left));
        const __m512i eight = _mm512_add_epi8(_mm512_permutexvar_epi8(which, begins), within);
        if (!decode_8(bytes, eight, lanes, out)) return false;
        which = _mm512_add_epi8(which, _mm512_set1_epi8(8));
    }
    return true;
}

/* Whether four bytes in a row go on: one of the varints has five. */
static inline bool has_long(uint64_t ongoing) {
    const uint64_t two = ongoing & ongoing >> 1;
    return two & two >> 2;
}

VBMI2 static inline __m512i load_block(const uint8_t *at, uint64_t there) {
    return SR_LIKELY(there == UINT64_MAX) ? _mm512_loadu_si512(at) : _mm512_maskz_loadu_epi8(there, at);
}

VBMI2 int64_t *sr_decode_vbmi2(const uint8_t *at, const uint8_t *end, int64_t *out, const int64_t *out_end) {
    while (at < end) {
        const uint64_t there = end - at >= BLOCK ? UINT64_MAX : UINT64_MAX >> (BLOCK - (end - at));
        const __m512i bytes = load_block(at, there);
        const uint64_t ongoing = _mm512_movepi8_mask(bytes), ends = ~ongoing & there;
        const int count = __builtin_popcountll(ends);
        /* No varint is as long as a block, and no more values are written than have room. */
        if (!count || out_end - out < count) return NULL;
        const __m512i begins = _mm512_maskz_compress_epi8(ends << 1 | 1, byte_numbers());
        if (SR_LIKELY(!has_long(ongoing))) decode_short(bytes, begins, count, out, out_end - out >= BLOCK);
        else if (!decode_any(bytes, begins, count, out)) return NULL;
        out += count;
        at += 64 - __builtin_clzll(ends);
    }
    return out;
}

#endif
