/* Serialized messages from columns: one message a row, of one field a column. A field is the row's
   values behind heads, such as tags; after each head stands the number of bytes behind it.
   Source: protobuf.dev/programming-guides/encoding. */
#ifndef SR_RECORDS_H
#define SR_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

enum { SR_MOST_HEADS = 4 };

struct sr_octets {
    const uint8_t *data;
    int64_t size;
};

enum sr_form {
    SR_ITEMS = 0,    /* items of a width, as they are in memory */
    SR_INTEGERS = 1, /* int64, written as varints */
    SR_TEXTS = 2,    /* byte strings that stand anywhere, one a row */
};

/* A column. Its memory may change meanwhile, so that everything is checked where it is read; texts
   and heads do not change. */
struct sr_field {
    enum sr_form form;
    struct sr_octets heads[SR_MOST_HEADS];
    int head_count;
    bool omits_last; /* the last head is left out where a row has no bytes */
    const uint8_t *values;
    int64_t count, width;           /* of the items or integers */
    const int64_t *splits;          /* rows + 1, in items; NULL for texts */
    const struct sr_octets *texts;  /* NULL but for texts */
    const uint8_t *missing;         /* rows: not 0 where a row lacks the field; or NULL */
};

struct sr_message {
    const struct sr_field *fields;
    int64_t field_count, rows;
    struct sr_octets head; /* of the whole message; of size 0 where there is none */
};

enum sr_join_fault { SR_JOINED, SR_SPLITS_FALL, SR_TOO_LONG, SR_NO_ROOM_TO_JOIN, SR_CHANGED };

struct sr_joined {
    int64_t rows;   /* written */
    int64_t needed; /* bytes of the next row, where it is this that did not fit */
    enum sr_join_fault fault;
};

/* Bytes that no message of a row exceeds. */
int64_t sr_most(const struct sr_message *message);

/* Write the messages of rows from `first` on end to end, up to `most` rows and `room` bytes; as
   TFRecord frames with `framed`. offsets[row - first] is where each begins, the last one the end.
   Without `out` they are only measured. Needs 0 <= first and first + most <= rows. */
struct sr_joined sr_join(const struct sr_message *message, int64_t first, int64_t most, bool framed, uint8_t *out,
                         int64_t room, int64_t *offsets);

#endif
