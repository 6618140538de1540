/* The rows of several lanes in one order: streamrec.kernel.contract.Run. */
#ifndef SR_INTERLEAVE_H
#define SR_INTERLEAVE_H

#include <stdbool.h>
#include <stdint.h>

/* Consecutive rows of one lane: arrays of `count` items each. */
struct sr_run {
    const int32_t *buffer_index;
    const int64_t *offsets;
    const int64_t *lengths;
    const int32_t *shards;
    const int64_t *ordinals;
    int64_t count;
    int64_t epoch;
    int32_t first_buffer; /* of all runs' buffers end to end, the run's first one */
};

/* Rows of any lane: arrays of as many items as all runs have together. */
struct sr_interleaved {
    int32_t *buffer_index;
    int64_t *offsets;
    int64_t *lengths;
    int32_t *shards;
    int64_t *ordinals;
    int64_t *epochs;
    int64_t *ends; /* running sums of the lengths */
};

/* A lane's rows: where they begin in all lanes' rows end to end, and how many there are. */
struct sr_lane {
    int64_t begin;
    int64_t rows;
};

/* Where each of all lanes' rows, end to end, goes: its key's place among the keys, of which `key % lane_count`
   is the lane. The lanes are used up; together they have `count` rows. False where the keys name a lane more
   often than it has rows, or are negative. */
bool sr_places(const int64_t *keys, int64_t count, struct sr_lane *lanes, int64_t lane_count, int64_t *places);

/* Put the runs' rows, end to end, to their places, which are a permutation. */
void sr_interleave(const struct sr_run *runs, int64_t run_count, const int64_t *places, const struct sr_interleaved *out);

#endif
