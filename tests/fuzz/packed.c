/* Packed varints: every way of decoding against reading one after the other, with room for more
   values than there are, for just as many, and for fewer. */
#include "packed.h"

#include "input.h"

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    sr_packed_init();
    return 0;
}

/* How many varints there are, one after the other; -1 where they are none. */
static int64_t count_singly(const uint8_t *at, const uint8_t *end, int64_t *out) {
    int64_t count = 0;
    for (uint64_t value = 0; at < end; out[count++] = (int64_t)value)
        if (!(at = sr_read_varint(at, end, &value))) return -1;
    return count;
}

static void check_way(sr_decode *decode, const uint8_t *at, size_t size, const int64_t *values, int64_t count,
                      int64_t room) {
    int64_t *out = exactly_items(room, sizeof *out);
    const int64_t *end = decode(at, at + size, out, out + room);
    if (count < 0 || count > room)
        CHECK(!end);
    else
        CHECK(end == out + count && (!count || !memcmp(out, values, (size_t)count * sizeof *out)));
    free(out);
}

/* Any bytes are hardly ever varints for long: end some of those that are longer than ten bytes, and
   the last one. */
static void mend(uint8_t *bytes, size_t size) {
    int run = 0;
    for (size_t k = 0; k < size; k++) {
        run = bytes[k] & 128 ? run + 1 : 0;
        if (run == 10 || k + 1 == size) bytes[k] &= 127, run = 0;
    }
}

static uint32_t sum_of(const struct input *input) {
    uint32_t sum = 0;
    for (size_t k = 0; k < input->size; k++) sum = (sum ^ input->data[k]) * 16777619u;
    return sum >> 8;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, size};
    const uint8_t choice = take_byte(&input);
    const int64_t more = take_byte(&input), fewer = take_byte(&input);
    const size_t misalignment = choice >> 2 & 7;
    /* One input in 256, as its bytes have it, is repeated: were it a choice, most time would go there. */
    const size_t repeat = sum_of(&input) % 256 ? 1 : 1 + take_below(&input, 32);
    const size_t length = input.size * repeat;
    uint8_t *memory = exactly(misalignment + length), *bytes = memory + misalignment;
    for (size_t k = 0; k < length; k++) bytes[k] = input.data[k % input.size];
    if (choice & 1) mend(bytes, length);

    int64_t *values = exactly_items((int64_t)length, sizeof *values);
    const int64_t count = count_singly(bytes, bytes + length, values);
    CHECK(sr_count_packed(bytes, bytes + length) == count);
    const int64_t exact = count < 0 ? (int64_t)length : count;
    for (int k = 0; k < SR_PACKED_WAYS; k++) {
        if (!sr_packed_ways[k]) continue;
        check_way(sr_packed_ways[k], bytes, length, values, count, exact);
        check_way(sr_packed_ways[k], bytes, length, values, count, exact + more);
        check_way(sr_packed_ways[k], bytes, length, values, count, fewer < exact ? exact - fewer : 0);
    }
    free(values);
    free(memory);
    return 0;
}
