#include "varints.h"

#include "memory.h"

enum { LONGEST = 10 };

/* The bytes of a varint: one for each seven bits. */
static inline int64_t size_of(uint64_t value) { return (70 - __builtin_clzll(value | 1)) / 7; }

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

bool sr_put_varints(const int64_t *values, int64_t first, int64_t last, uint8_t *out, int64_t size) {
    const uint8_t *const end = out + size;
    for (int64_t k = first; k < last; k++) {
        uint64_t value = (uint64_t)values[k];
        if (SR_UNLIKELY(end - out < LONGEST) && end - out < size_of(value)) return false;
        for (; value > 127; value >>= 7) *out++ = (uint8_t)(value | 128);
        *out++ = (uint8_t)value;
    }
    return out == end;
}
