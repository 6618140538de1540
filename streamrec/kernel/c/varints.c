#include "varints.h"

#include "memory.h"

enum { LONGEST = 10 };

/* Bytes ahead of the integer that is measured. The processor's own look ahead ends with the page: of
   integers that are in no cache yet, half the time went by waiting at the begin of each page. */
enum { AHEAD = 4096 };

int64_t sr_varints_size(const int64_t *values, int64_t count) {
    int64_t size = 0;
    for (int64_t k = 0; k < count; k++) {
        sr_prefetch((const uint8_t *)&values[k], AHEAD);
        size += sr_varint_size((uint64_t)values[k]);
    }
    return size;
}

/* A varint of up to 28 bits, which is four bytes or less, written without a branch: the sizes of
   integers that follow one another are hard to foretell. Needs four bytes of room. */
static inline uint8_t *put_short(uint8_t *out, uint32_t value) {
    const int64_t size = sr_varint_size(value);
    const uint32_t spread = (value & 0x7f) | (value & 0x3f80) << 1 | (value & 0x1fc000) << 2 | (value & 0xfe00000) << 3;
    sr_store32(out, spread | (0x808080 & ((1u << 8 * (size - 1)) - 1)));
    return out + size;
}

bool sr_put_varints(const int64_t *values, int64_t count, uint8_t *out, int64_t size) {
    const uint8_t *const end = out + size;
    for (int64_t k = 0; k < count; k++) {
        const uint64_t value = (uint64_t)sr_load_once(&values[k]);
        /* put_short() stores four bytes, whatever the varint takes. */
        const bool is_tight = end - out < LONGEST;
        if (SR_UNLIKELY(is_tight) && end - out < sr_varint_size(value)) return false;
        out = SR_LIKELY(value < 1u << 28 && !is_tight) ? put_short(out, (uint32_t)value) : sr_put_varint(out, value);
    }
    /* Fewer bytes than measured are a change as well. */
    return out == end;
}
