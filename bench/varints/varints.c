/* Ways to decode a packed list of int64 varints, those of streamrec/kernel/c last; see __main__.py for
 * what is measured with them.
 *
 * Each takes the list's bytes [p, end) and room for values [out, limit), and gives how many values
 * it wrote, MALFORMED or FULL. None reads a byte outside of the list, or writes past the room. As
 * protobuf has it, a varint has ten bytes at most, and what does not fit in 64 bits is dropped.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "packed.h"

enum { MALFORMED = -1, FULL = -2 };

#define LONGEST 10
#define LOW_BITS 0x7f7f7f7f7f7f7f7fULL
#define HIGH_BITS 0x8080808080808080ULL
#define INLINE static inline __attribute__((always_inline))

typedef int64_t Decode(const uint8_t *p, const uint8_t *end, int64_t *out, const int64_t *limit);

INLINE uint64_t load(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* (1) One byte after the other. Gives the byte after the varint, or NULL. */
INLINE const uint8_t *byte_by_byte(const uint8_t *p, const uint8_t *end, int64_t *value) {
    uint64_t found = 0;
    for (int shift = 0; shift < 7 * LONGEST; shift += 7) {
        if (p == end) return NULL;
        uint64_t byte = *p++;
        found |= (byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = (int64_t)found;
            return p;
        }
    }
    return NULL;
}

static int64_t scalar(const uint8_t *p, const uint8_t *end, int64_t *out, const int64_t *limit) {
    const int64_t *first = out;
    while (p != end) {
        if (out == limit) return FULL;
        p = byte_by_byte(p, end, out++);
        if (!p) return MALFORMED;
    }
    return out - first;
}

/* (2) The same without a counter, where ten bytes can be read. A continued byte has added its high
 * bit: the next one takes that away again. */
INLINE const uint8_t *unrolled_one(const uint8_t *p, int64_t *value) {
    uint64_t found = p[0], byte;
    if (found < 0x80) {
        *value = (int64_t)found;
        return p + 1;
    }
#define STEP(i)                                \
    byte = p[i];                               \
    found += (byte - 1) << (7 * i);            \
    if (byte < 0x80) {                         \
        *value = (int64_t)found;               \
        return p + i + 1;                      \
    }
    STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8) STEP(9)
#undef STEP
    return NULL;
}

static int64_t unrolled(const uint8_t *p, const uint8_t *end, int64_t *out, const int64_t *limit) {
    const int64_t *first = out;
    while (p != end) {
        if (out == limit) return FULL;
        p = end - p >= LONGEST ? unrolled_one(p, out++) : byte_by_byte(p, end, out++);
        if (!p) return MALFORMED;
    }
    return out - first;
}

/* (3) Words: seven bits out of each of a word's bytes, pushed together. */
INLINE uint64_t by_shifts(uint64_t word) {
    word &= LOW_BITS;
    word = (word & 0x007f007f007f007fULL) | (word & 0x7f007f007f007f00ULL) >> 1;
    word = (word & 0x00003fff00003fffULL) | (word & 0x3fff00003fff0000ULL) >> 2;
    return (word & 0x000000000fffffffULL) | (word & 0x0fffffff00000000ULL) >> 4;
}

/* The varint's end is found in the word itself: one varint cannot start before that. */
#define WORDS(NAME, TARGET, COMPACT)                                                               \
    TARGET static int64_t NAME(const uint8_t *p, const uint8_t *end, int64_t *out,                 \
                               const int64_t *limit) {                                             \
        const int64_t *first = out;                                                                \
        while (p != end) {                                                                         \
            if (out == limit) return FULL;                                                         \
            uint64_t word = 0, ends = 0;                                                           \
            if (end - p >= 8) {                                                                    \
                word = load(p);                                                                    \
                ends = ~word & HIGH_BITS;                                                          \
            }                                                                                      \
            if (ends) {                                                                            \
                *out++ = (int64_t)COMPACT(word & (ends ^ (ends - 1)));                             \
                p += (__builtin_ctzll(ends) + 1) / 8;                                              \
            } else {                                                                               \
                p = byte_by_byte(p, end, out++);                                                   \
                if (!p) return MALFORMED;                                                          \
            }                                                                                      \
        }                                                                                          \
        return out - first;                                                                        \
    }

WORDS(words, , by_shifts)

#if defined(__x86_64__)

/* One bit for each of 64 bytes: whether a varint ends there. */
INLINE uint64_t ends_of_64(const uint8_t *p) {
    uint64_t continued = 0;
    for (int i = 0; i < 4; i++) {
        __m128i part = _mm_loadu_si128((const __m128i *)(p + 16 * i));
        continued |= (uint64_t)(uint32_t)_mm_movemask_epi8(part) << (16 * i);
    }
    return ~continued;
}

INLINE void widen_64(const uint8_t *p, int64_t *out) {
    for (int i = 0; i < 64; i++) out[i] = p[i];
}

/* Ends come from a bit mask: the next varint need not wait until this one is decoded. A word is
 * read from each start, so eight bytes must follow the 64. */
#define MASKS(NAME, TARGET, COMPACT, REST)                                                         \
    TARGET static int64_t NAME(const uint8_t *p, const uint8_t *end, int64_t *out,                 \
                               const int64_t *limit) {                                             \
        const int64_t *first = out;                                                                \
        while (end - p >= 64 + 8) {                                                                \
            uint64_t ends = ends_of_64(p);                                                         \
            if (ends == ~0ULL && limit - out >= 64) {                                              \
                widen_64(p, out);                                                                  \
                out += 64;                                                                         \
                p += 64;                                                                           \
                continue;                                                                          \
            }                                                                                      \
            if (!ends) return MALFORMED;                                                           \
            int start = 0;                                                                         \
            for (; ends; ends &= ends - 1) {                                                       \
                int stop = __builtin_ctzll(ends) + 1;                                              \
                if (out == limit) return FULL;                                                     \
                if (stop - start <= 8) {                                                           \
                    uint64_t word = load(p + start) & (~0ULL >> (64 - 8 * (stop - start)));        \
                    *out++ = (int64_t)COMPACT(word);                                               \
                } else if (!byte_by_byte(p + start, p + stop, out++)) {                            \
                    return MALFORMED;                                                              \
                }                                                                                  \
                start = stop;                                                                      \
            }                                                                                      \
            p += start;                                                                            \
        }                                                                                          \
        int64_t more = REST(p, end, out, limit);                                                   \
        return more < 0 ? more : out - first + more;                                               \
    }

MASKS(masks, , by_shifts, words)

/* (4) The same with BMI2's PEXT (slow before Zen 3). */
#define BMI2 __attribute__((target("bmi,bmi2,lzcnt,popcnt")))
#define BY_PEXT(word) _pext_u64(word, LOW_BITS)

WORDS(words_pext, BMI2, BY_PEXT)
MASKS(masks_pext, BMI2, BY_PEXT, words_pext)

/* (5) As Masked VByte: the high bits of eight bytes select a shuffle that gives each varint of one
 * or two bytes a lane of 16 bits; what is longer goes byte by byte.
 * Source of the idea: Plaisance, Kurz, Lemire, "Vectorized VByte Decoding", 2015. */
static struct {
    uint8_t shuffle[16];
    uint8_t values, bytes;
} pairs[256];

__attribute__((constructor)) static void fill_pairs(void) {
    for (int key = 0; key < 256; key++) {
        int at = 0, lane = 0;
        memset(pairs[key].shuffle, 0x80, 16);
        while (at < 8) {
            int continued = key >> at & 1;
            if (continued && (at == 7 || (key >> (at + 1) & 1))) break;
            pairs[key].shuffle[2 * lane] = (uint8_t)at++;
            if (continued) pairs[key].shuffle[2 * lane + 1] = (uint8_t)at++;
            lane++;
        }
        pairs[key].values = (uint8_t)lane;
        pairs[key].bytes = (uint8_t)at;
    }
}

#define SSE41 __attribute__((target("ssse3,sse4.1")))

SSE41 INLINE void widen_8(__m128i lanes, int64_t *out) {
    _mm_storeu_si128((__m128i *)out, _mm_cvtepu16_epi64(lanes));
    _mm_storeu_si128((__m128i *)(out + 2), _mm_cvtepu16_epi64(_mm_srli_si128(lanes, 4)));
    _mm_storeu_si128((__m128i *)(out + 4), _mm_cvtepu16_epi64(_mm_srli_si128(lanes, 8)));
    _mm_storeu_si128((__m128i *)(out + 6), _mm_cvtepu16_epi64(_mm_srli_si128(lanes, 12)));
}

SSE41 static int64_t masked_vbyte(const uint8_t *p, const uint8_t *end, int64_t *out,
                                  const int64_t *limit) {
    const int64_t *first = out;
    while (end - p >= 16 && limit - out >= 8) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)p);
        int key = _mm_movemask_epi8(bytes) & 0xff;
        if (pairs[key].values) {
            __m128i shuffle = _mm_loadu_si128((const __m128i *)pairs[key].shuffle);
            __m128i lanes = _mm_shuffle_epi8(bytes, shuffle);
            __m128i low = _mm_and_si128(lanes, _mm_set1_epi16(0x007f));
            __m128i high = _mm_and_si128(lanes, _mm_set1_epi16(0x7f00));
            widen_8(_mm_or_si128(low, _mm_srli_epi16(high, 1)), out);
            out += pairs[key].values;
            p += pairs[key].bytes;
        } else {
            p = unrolled_one(p, out++);
            if (!p) return MALFORMED;
        }
    }
    int64_t more = unrolled(p, end, out, limit);
    return more < 0 ? more : out - first + more;
}

/* (6) Four words side by side: starts from the bit mask, compaction by two multiplications. */
#define AVX2 __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt")))

AVX2 INLINE __m256i compact_4(__m256i words, __m256i *ends) {
    *ends = _mm256_andnot_si256(words, _mm256_set1_epi64x((int64_t)HIGH_BITS));
    __m256i before = _mm256_add_epi64(*ends, _mm256_set1_epi64x(-1));
    __m256i own = _mm256_and_si256(words, _mm256_xor_si256(*ends, before));
    own = _mm256_and_si256(own, _mm256_set1_epi64x((int64_t)LOW_BITS));
    own = _mm256_maddubs_epi16(_mm256_set1_epi16((int16_t)0x8001), own);
    own = _mm256_madd_epi16(own, _mm256_set1_epi32(0x40000001));
    __m256i low = _mm256_and_si256(own, _mm256_set1_epi64x(0x0fffffff));
    return _mm256_or_si256(low, _mm256_slli_epi64(_mm256_srli_epi64(own, 32), 28));
}

AVX2 static int64_t masks_avx2(const uint8_t *p, const uint8_t *end, int64_t *out,
                               const int64_t *limit) {
    const int64_t *first = out;
    while (end - p >= 64 + 8) {
        uint32_t low = (uint32_t)_mm256_movemask_epi8(_mm256_loadu_si256((const __m256i *)p));
        uint32_t high =
            (uint32_t)_mm256_movemask_epi8(_mm256_loadu_si256((const __m256i *)(p + 32)));
        uint64_t ends = ~((uint64_t)high << 32 | low);
        if (!ends) return MALFORMED;
        int count = __builtin_popcountll(ends), used = 64 - __builtin_clzll(ends);
        if (limit - out < count) break;
        if (ends == ~0ULL) {
            for (int i = 0; i < 64; i += 4) {
                uint32_t four;
                memcpy(&four, p + i, 4);
                __m256i wide = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128((int)four));
                _mm256_storeu_si256((__m256i *)(out + i), wide);
            }
            out += 64;
            p += 64;
            continue;
        }
        uint64_t starts = ends << 1 | 1;
        for (; count >= 4; count -= 4) {
            int at[4];
            for (int i = 0; i < 4; i++) {
                at[i] = __builtin_ctzll(starts);
                starts &= starts - 1;
            }
            __m128i one = _mm_loadl_epi64((const __m128i *)(p + at[0]));
            __m128i two = _mm_loadl_epi64((const __m128i *)(p + at[2]));
            one = _mm_castpd_si128(
                _mm_loadh_pd(_mm_castsi128_pd(one), (const double *)(p + at[1])));
            two = _mm_castpd_si128(
                _mm_loadh_pd(_mm_castsi128_pd(two), (const double *)(p + at[3])));
            __m256i found;
            __m256i values =
                compact_4(_mm256_inserti128_si256(_mm256_castsi128_si256(one), two, 1), &found);
            _mm256_storeu_si256((__m256i *)out, values);
            __m256i none = _mm256_cmpeq_epi64(found, _mm256_setzero_si256());
            if (!_mm256_testz_si256(none, none)) {
                for (int i = 0; i < 4; i++)
                    if (!byte_by_byte(p + at[i], end, out + i)) return MALFORMED;
            }
            out += 4;
        }
        for (; count; count--) {
            if (!byte_by_byte(p + __builtin_ctzll(starts), end, out++)) return MALFORMED;
            starts &= starts - 1;
        }
        p += used;
    }
    int64_t more = words_pext(p, end, out, limit);
    return more < 0 ? more : out - first + more;
}

/* (7) AVX-512 with VBMI2 (Ice Lake, Zen 4): starts by VPCOMPRESSB, eight words at once by VPERMB.
 * Masked loads and stores: there is no tail. */
#define VBMI2                                                                                      \
    __attribute__((target("avx512f,avx512bw,avx512vbmi,avx512vbmi2,bmi,bmi2,lzcnt,popcnt")))

VBMI2 INLINE __m512i compact_8(__m512i words, __m512i ends) {
    __m512i before = _mm512_add_epi64(ends, _mm512_set1_epi64(-1));
    __m512i own = _mm512_ternarylogic_epi64(words, ends, before, 0x60); /* a & (b ^ c) */
    own = _mm512_and_si512(own, _mm512_set1_epi64((int64_t)LOW_BITS));
    own = _mm512_maddubs_epi16(_mm512_set1_epi16((int16_t)0x8001), own);
    own = _mm512_madd_epi16(own, _mm512_set1_epi32(0x40000001));
    __m512i mask = _mm512_set1_epi64(0x0fffffff);
    return _mm512_ternarylogic_epi64(mask, own, _mm512_srli_epi64(own, 4), 0xca); /* a ? b : c */
}

/* Bytes nine and ten of the lanes that have them; whether none has an eleventh. */
VBMI2 INLINE int add_long(__mmask8 lanes, __m512i rest, __m512i *values) {
    __m512i ninth = _mm512_and_si512(rest, _mm512_set1_epi64(0x7f));
    *values = _mm512_mask_or_epi64(*values, lanes, *values, _mm512_slli_epi64(ninth, 56));
    lanes &= _mm512_test_epi64_mask(rest, _mm512_set1_epi64(0x80));
    __m512i tenth = _mm512_slli_epi64(_mm512_srli_epi64(rest, 8), 63);
    *values = _mm512_mask_or_epi64(*values, lanes, *values, tenth);
    return !(lanes & _mm512_test_epi64_mask(rest, _mm512_set1_epi64(0x8000)));
}

VBMI2 static int64_t vbmi2(const uint8_t *p, const uint8_t *end, int64_t *out,
                           const int64_t *limit) {
    const int64_t *first = out;
    const __m512i eighths = _mm512_set_epi64(
        0x0707070707070707, 0x0606060606060606, 0x0505050505050505, 0x0404040404040404,
        0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    const __m512i within = _mm512_set1_epi64(0x0706050403020100);
    const __m512i iota = _mm512_add_epi8(
        within, _mm512_set_epi64(0x3838383838383838, 0x3030303030303030, 0x2828282828282828,
                                 0x2020202020202020, 0x1818181818181818, 0x1010101010101010,
                                 0x0808080808080808, 0));
    while (p != end) {
        uint64_t valid = end - p >= 64 ? ~0ULL : ~0ULL >> (64 - (end - p));
        __m512i bytes = _mm512_maskz_loadu_epi8(valid, p);
        uint64_t ends = ~_mm512_movepi8_mask(bytes) & valid;
        if (!ends) return MALFORMED;
        int count = __builtin_popcountll(ends), used = 64 - __builtin_clzll(ends);
        if (limit - out < count) return FULL;
        p += used;
        if (used == 64 && count == 64) {
            for (int i = 0; i < 64; i += 8) {
                __m128i eight = _mm_loadl_epi64((const __m128i *)(p - 64 + i));
                _mm512_storeu_si512(out + i, _mm512_cvtepu8_epi64(eight));
            }
            out += 64;
            continue;
        }
        __m512i starts = _mm512_maskz_compress_epi8(ends << 1 | 1, iota);
        for (__m512i which = eighths; count > 0; count -= 8) {
            __mmask8 lanes = (__mmask8)(count >= 8 ? 0xff : 0xff >> (8 - count));
            __m512i at = _mm512_add_epi8(_mm512_permutexvar_epi8(which, starts), within);
            __m512i words = _mm512_permutexvar_epi8(at, bytes);
            __m512i found = _mm512_andnot_si512(words, _mm512_set1_epi64((int64_t)HIGH_BITS));
            __m512i values = compact_8(words, found);
            __mmask8 lengthy = lanes & _mm512_testn_epi64_mask(found, found);
            if (lengthy) {
                at = _mm512_add_epi8(at, _mm512_set1_epi8(8));
                if (!add_long(lengthy, _mm512_permutexvar_epi8(at, bytes), &values))
                    return MALFORMED;
            }
            if (count >= 8)
                _mm512_storeu_si512(out, values);
            else
                _mm512_mask_storeu_epi64(out, lanes, values);
            out += count >= 8 ? 8 : count;
            which = _mm512_add_epi8(which, _mm512_set1_epi8(8));
        }
    }
    return out - first;
}

static int has_bmi2(void) { return __builtin_cpu_supports("bmi2"); }
static int has_sse41(void) { return __builtin_cpu_supports("sse4.1"); }
static int has_avx2(void) { return has_bmi2() && __builtin_cpu_supports("avx2"); }
static int has_vbmi2(void) {
    return has_bmi2() && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
}
#endif

static int always(void) { return 1; }

/* The kernel's own ways, as it has them. */
#define OF_KERNEL(name, number)                                                                        \
    static int64_t kernel_##name(const uint8_t *p, const uint8_t *end, int64_t *out, const int64_t *limit) { \
        const int64_t *done = sr_packed_ways[number].decode(p, end, out, limit);                       \
        return done ? done - out : MALFORMED;                                                          \
    }                                                                                                  \
    static int has_kernel_##name(void) {                                                               \
        sr_packed_init();                                                                              \
        return sr_packed_ways[number].decode != NULL;                                                  \
    }
OF_KERNEL(words, 0)
OF_KERNEL(avx2, 1)
OF_KERNEL(vbmi2, 2)

static const struct {
    const char *name;
    Decode *decode;
    int (*supported)(void);
} ways[] = {
    {"scalar", scalar, always},
    {"unrolled", unrolled, always},
    {"words, shifts", words, always},
#if defined(__x86_64__)
    {"bit mask, shifts", masks, always},
    {"words, PEXT", words_pext, has_bmi2},
    {"bit mask, PEXT", masks_pext, has_bmi2},
    {"masked VByte, 1-2 bytes", masked_vbyte, has_sse41},
    {"bit mask, AVX2", masks_avx2, has_avx2},
    {"AVX-512 VBMI2", vbmi2, has_vbmi2},
#endif
    {"kernel: words", kernel_words, has_kernel_words},
    {"kernel: avx2", kernel_avx2, has_kernel_avx2},
    {"kernel: vbmi2", kernel_vbmi2, has_kernel_vbmi2},
};

/* The name of a way; NULL past the last one. */
const char *way_name(int way) {
    return way < (int)(sizeof ways / sizeof *ways) ? ways[way].name : NULL;
}

int way_supported(int way) { return ways[way].supported(); }

/* Decode lists that stand end to end; gives the number of all values, MALFORMED or FULL. */
int64_t decode_lists(int way, const uint8_t *data, const int64_t *offsets, int64_t lists,
                     int64_t *out, int64_t room) {
    Decode *decode = ways[way].decode;
    const int64_t *limit = out + room;
    int64_t total = 0;
    for (int64_t i = 0; i < lists; i++) {
        int64_t count = decode(data + offsets[i], data + offsets[i + 1], out + total, limit);
        if (count < 0) return count;
        total += count;
    }
    return total;
}
