#include "varints.h"

#include "memory.h"

enum { LONGEST = 10 };

/* The bytes of a varint, one for each seven bits: nine sixty-fourths of the bits, rounded up. */
static inline int64_t size_of(uint64_t value) { return ((64 - __builtin_clzll(value | 1)) * 9 + 64) >> 6; }

bool sr_splits_rise(const int64_t *splits, int64_t rows, int64_t count) {
    bool rise = splits[0] >= 0 && splits[rows] <= count;
    for (int64_t row = 0; row < rows; row++) rise &= splits[row] <= splits[row + 1];
    return rise;
}

void sr_varint_offsets(const int64_t *values, const int64_t *splits, int64_t rows, int64_t *offsets) {
    int64_t sum = 0;
    offsets[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t k = splits[row]; k < splits[row + 1]; k++) sum += size_of((uint64_t)values[k]);
        offsets[row + 1] = sum;
    }
}

/* A varint of up to 28 bits, which is four bytes or less, written without a branch: the sizes of
   integers that follow one another are hard to foretell. Needs four bytes of room. */
static inline uint8_t *put_short(uint8_t *out, uint32_t value) {
    const int64_t size = size_of(value);
    const uint32_t spread = (value & 0x7f) | (value & 0x3f80) << 1 | (value & 0x1fc000) << 2 | (value & 0xfe00000) << 3;
    sr_store32(out, spread | (0x808080 & ((1u << 8 * (size - 1)) - 1)));
    return out + size;
}

static inline uint8_t *put_long(uint8_t *out, uint64_t value) {
    for (; value > 127; value >>= 7) *out++ = (uint8_t)(value | 128);
    *out++ = (uint8_t)value;
    return out;
}

bool sr_put_varints(const int64_t *values, int64_t first, int64_t last, uint8_t *out, int64_t size) {
    const uint8_t *const end = out + size;
    for (int64_t k = first; k < last; k++) {
        const uint64_t value = (uint64_t)values[k];
        const bool is_tight = end - out < LONGEST;
        if (SR_UNLIKELY(is_tight) && end - out < size_of(value)) return false;
        out = SR_LIKELY(value < 1u << 28 && !is_tight) ? put_short(out, (uint32_t)value) : put_long(out, value);
    }
    return out == end;
}
