/* A feature's list: Int64List, FloatList or BytesList, one field of values each.
   Source: tensorflow/core/example/feature.proto. */
#ifndef SR_LIST_H
#define SR_LIST_H

#include "wire.h"

/* A list's type: the number of its field in Feature. */
enum sr_type { SR_NO_LIST = 0, SR_STRINGS = 1, SR_FLOATS = 2, SR_INTS = 3 };

struct sr_size {
    int64_t values;
    int64_t bytes; /* of all strings together */
};

/* Where decoded values go. Numbers: int64 or float32 in `values`. Strings: end to end in `values`,
   and the end of each in `ends`. Nothing is written beyond either. */
struct sr_sink {
    uint8_t *values;
    uint8_t *values_end;
    int64_t *ends;
    int64_t *ends_end;
    int64_t bytes; /* of strings before */
};

/* Add the list in the bytes to `size`; whether it is one. `room` groups may be nested in it. */
bool sr_measure_list(enum sr_type type, const uint8_t *at, const uint8_t *end, int room, struct sr_size *size);

/* Decode a list that was measured; false where the sink is full, or the bytes have changed. */
bool sr_decode_list(enum sr_type type, const uint8_t *at, const uint8_t *end, struct sr_sink *sink);

#endif
