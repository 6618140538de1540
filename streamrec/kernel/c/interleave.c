#include "interleave.h"

#include "memory.h"

bool sr_places(const int64_t *keys, int64_t count, struct sr_lane *lanes, int64_t lane_count, int64_t *places) {
    int64_t before = 0, lane = 0;
    for (int64_t row = 0; row < count; row++) {
        const int64_t key = keys[row];
        if (SR_UNLIKELY(key < 0)) return false;
        if (SR_LIKELY(key >= before && key - before < lane_count)) { /* a division costs more than the rest */
            lane += key - before;
            if (lane >= lane_count) lane -= lane_count;
        } else {
            lane = key % lane_count;
        }
        before = key;
        if (SR_UNLIKELY(!lanes[lane].rows)) return false;
        lanes[lane].rows--;
        places[lanes[lane].begin++] = row;
    }
    return true;
}

static void put(const struct sr_run *run, const int64_t *places, const struct sr_interleaved *out) {
    for (int64_t row = 0; row < run->count; row++) {
        const int64_t place = places[row];
        out->buffer_index[place] = (int32_t)((uint32_t)run->buffer_index[row] + (uint32_t)run->first_buffer);
        out->offsets[place] = run->offsets[row];
        out->lengths[place] = run->lengths[row];
        out->shards[place] = run->shards[row];
        out->ordinals[place] = run->ordinals[row];
        out->epochs[place] = run->epoch;
    }
}

void sr_interleave(const struct sr_run *runs, int64_t run_count, const int64_t *places, const struct sr_interleaved *out) {
    int64_t rows = 0;
    for (int64_t k = 0; k < run_count; k++) {
        put(&runs[k], places + rows, out);
        rows += runs[k].count;
    }
    uint64_t end = 0; /* unsigned, which may overflow */
    for (int64_t row = 0; row < rows; row++) out->ends[row] = (int64_t)(end += (uint64_t)out->lengths[row]);
}
