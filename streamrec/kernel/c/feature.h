/* A Feature, whole or in parts: a oneof of three lists. Where one of them comes again its values
   are appended; where another one comes the earlier ones are gone. */
#ifndef SR_FEATURE_H
#define SR_FEATURE_H

#include "list.h"

/* What the parts of one Feature come to. */
struct sr_feature {
    enum sr_type type;
    struct sr_size size;
    int64_t lists; /* fields of the oneof, in all parts */
    int64_t first; /* the number of the first whose values are still there */
};

/* How many messages and groups may be nested in a field of the record (0), of Features (1), of an
   entry of its map (2), and of the Feature there (3). A feature list's Features are one deeper. */
enum { SR_IN_RECORD = SR_DEEPEST, SR_IN_MAP = SR_DEEPEST - 1, SR_IN_ENTRY = SR_DEEPEST - 2, SR_IN_VALUE = SR_DEEPEST - 3 };

/* The one field of Features, FeatureLists and FeatureList. */
enum { SR_ITEM = SR_TAG(1, SR_DELIMITED) };

/* Add a part; whether it is one. `room` messages and groups may be nested in it. */
bool sr_measure_feature(const uint8_t *at, const uint8_t *end, int room, struct sr_feature *feature);

/* Decode a part of a feature that was measured; `*skip` lists come before those that are left. */
bool sr_decode_feature(const uint8_t *at, const uint8_t *end, enum sr_type type, int64_t *skip,
                       struct sr_sink *sink);

/* An entry of one of the maps: a key in field 1, a message in field 2, each possibly repeated. */
struct sr_entry {
    const uint8_t *key; /* the last one */
    uint32_t key_size;
    bool is_odd; /* has another field: protobuf's parser then takes the whole entry for unknown */
};

bool sr_read_entry(const uint8_t *at, const uint8_t *end, int room, struct sr_entry *entry);

/* The next value of an entry from `at` on, and returned, where it ends; NULL where there is none. The
   entry was read before. */
const uint8_t *sr_next_value(const uint8_t *at, const uint8_t *end, const uint8_t **value);

/* The same for all parts of the Feature in an entry that was read before. */
bool sr_measure_entry(const uint8_t *at, const uint8_t *end, struct sr_feature *feature);
bool sr_decode_entry(const uint8_t *at, const uint8_t *end, const struct sr_feature *feature, struct sr_sink *sink);

#endif
