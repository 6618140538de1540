/* Interleaving: lanes of any size, of several runs, against a search for each key's row. */
#include "interleave.h"

#include "input.h"

enum { MOST_LANES = 6, MOST_RUNS = 10, MOST_ROWS = 8 };

/* Keys in turns, as the round robin has them; or with leaps, back ones too; or any. */
static void draw_keys(struct input *input, int64_t *keys, int64_t count, int64_t lane_count) {
    int64_t key = (int64_t)take_below(input, 9) * lane_count;
    for (int64_t row = 0; row < count; row++) {
        const uint8_t choice = take_byte(input);
        keys[row] = key;
        if (choice < 0xc0) key++;
        else if (choice < 0xf0) key += choice & 31;
        else if (choice < 0xfa) key = (int64_t)(take_number(input, 8) & INT64_MAX) / 2;
        else key = (int64_t)take_number(input, 8) >> 1;
    }
}

/* As many keys of each lane as it has rows, where the input asks for it: else hardly any are. */
static void mend_keys(struct input *input, int64_t *keys, int64_t count, const struct sr_lane *lanes, int64_t lane_count) {
    int64_t given[MOST_LANES] = {0};
    for (int64_t row = 0; row < count; row++) {
        int64_t lane = (int64_t)take_below(input, (uint64_t)lane_count);
        while (given[lane] == lanes[lane].rows) lane = (lane + 1) % lane_count;
        given[lane]++;
        keys[row] = (int64_t)(take_byte(input) & 7) * lane_count + lane;
    }
}

/* Whether the keys are those of the lanes' rows; and where each row goes. */
static bool plain_places(const int64_t *keys, int64_t count, const struct sr_lane *lanes, int64_t lane_count,
                         int64_t *places) {
    int64_t given[MOST_LANES] = {0};
    for (int64_t row = 0; row < count; row++) {
        if (keys[row] < 0) return false;
        const int64_t lane = keys[row] % lane_count;
        if (given[lane] == lanes[lane].rows) return false;
        places[lanes[lane].begin + given[lane]++] = row;
    }
    return true;
}

static void *draw_items(struct input *input, int64_t count, size_t size) {
    uint8_t *items = exactly_items(count, size);
    for (size_t k = 0; k < (size_t)count * size; k++) items[k] = take_front(input);
    return items;
}

static struct sr_run draw_run(struct input *input, int64_t rows) {
    return (struct sr_run){
        .buffer_index = draw_items(input, rows, 4),
        .offsets = draw_items(input, rows, 8),
        .lengths = draw_items(input, rows, 8),
        .shards = draw_items(input, rows, 4),
        .ordinals = draw_items(input, rows, 8),
        .count = rows,
        .epoch = (int64_t)take_number(input, 8),
        .first_buffer = (int32_t)take_number(input, 4),
    };
}

static void free_run(const struct sr_run *run) {
    free((void *)run->buffer_index);
    free((void *)run->offsets);
    free((void *)run->lengths);
    free((void *)run->shards);
    free((void *)run->ordinals);
}

static void check_row(const struct sr_run *run, int64_t row, const struct sr_interleaved *out, int64_t place) {
    CHECK((uint32_t)out->buffer_index[place] == (uint32_t)run->buffer_index[row] + (uint32_t)run->first_buffer);
    CHECK(out->offsets[place] == run->offsets[row] && out->lengths[place] == run->lengths[row]);
    CHECK(out->shards[place] == run->shards[row] && out->ordinals[place] == run->ordinals[row]);
    CHECK(out->epochs[place] == run->epoch);
}

static void check_rows(const struct sr_run *runs, int64_t run_count, const int64_t *places, int64_t count) {
    const struct sr_interleaved out = {exactly_items(count, 4), exactly_items(count, 8), exactly_items(count, 8),
                                       exactly_items(count, 4), exactly_items(count, 8), exactly_items(count, 8),
                                       exactly_items(count, 8)};
    uint64_t end = 0;
    sr_interleave(runs, run_count, places, &out);
    for (int64_t k = 0; k < run_count; k++)
        for (int64_t row = 0; row < runs[k].count; row++) check_row(&runs[k], row, &out, *places++);
    for (int64_t row = 0; row < count; row++) CHECK((uint64_t)out.ends[row] == (end += (uint64_t)out.lengths[row]));
    free(out.buffer_index);
    free(out.offsets);
    free(out.lengths);
    free(out.shards);
    free(out.ordinals);
    free(out.epochs);
    free(out.ends);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, size};
    const int64_t lane_count = (int64_t)take_below(&input, MOST_LANES) + 1;
    const int64_t run_count = (int64_t)take_below(&input, MOST_RUNS + 1);
    struct sr_run runs[MOST_RUNS];
    struct sr_lane *lanes = exactly_items(lane_count, sizeof *lanes);
    int64_t count = 0, lane = 0;
    lanes[0] = (struct sr_lane){0, 0};
    for (int64_t k = 0; k < run_count; k++) {
        for (int64_t more = take_byte(&input) & 1; more && lane + 1 < lane_count; more--)
            lanes[++lane] = (struct sr_lane){count, 0};
        const int64_t rows = (int64_t)take_below(&input, MOST_ROWS + 1);
        runs[k] = draw_run(&input, rows);
        lanes[lane].rows += rows;
        count += rows;
    }
    while (lane + 1 < lane_count) lanes[++lane] = (struct sr_lane){count, 0};
    int64_t *keys = exactly_items(count, sizeof *keys);
    if (take_bool(&input)) mend_keys(&input, keys, count, lanes, lane_count);
    else draw_keys(&input, keys, count, lane_count);
    int64_t *places = exactly_items(count, sizeof *places), *plain = exactly_items(count, sizeof *plain);
    const bool fits = plain_places(keys, count, lanes, lane_count, plain);
    CHECK(sr_places(keys, count, lanes, lane_count, places) == fits);
    if (fits) {
        CHECK(!count || !memcmp(places, plain, (size_t)count * sizeof *places));
        check_rows(runs, run_count, places, count);
    }
    for (int64_t k = 0; k < run_count; k++) free_run(&runs[k]);
    free(lanes);
    free(keys);
    free(places);
    free(plain);
    return 0;
}
