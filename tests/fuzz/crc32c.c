/* CRC32C: the processor's ways against the tables, the tables against the definition, and the CRC of a
   whole against that of its parts. */
#include "crc32c.h"

#include "input.h"

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    sr_crc32c_init();
    return 0;
}

/* RFC 3720, bit by bit. */
static uint32_t by_definition(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
    for (size_t k = 0; k < size; k++) {
        crc ^= data[k];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static uint32_t by_table(uint32_t crc, const uint8_t *data, size_t size) {
    return sr_crc32c_ways[0](crc, data, size);
}

static void check_way(sr_crc32c_compute *compute, uint32_t before, const uint8_t *bytes, size_t length, size_t split) {
    const uint32_t crc = by_table(before, bytes, length), first = compute(before, bytes, split);
    CHECK(crc == compute(before, bytes, length));
    CHECK(crc == compute(first, bytes + split, length - split));
    CHECK(crc == by_table(first, bytes + split, length - split));
}

/* One of the processor's ways takes 48 KiB at once. One input in 256 is stretched to that, chosen by all of its
   bytes: those that are changed from it are then as short as others, or most of the time went there. */
static size_t stretch(struct input *input) {
    const uint8_t choice = take_byte(input);
    const size_t more = 48 * 1024 * (1 + (choice & 1)) + take_below(input, 2048);
    return by_table(0, input->data, input->size) >> 24 ? 0 : more;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, size};
    const uint32_t before = (uint32_t)take_number(&input, 4);
    const size_t misalignment = take_below(&input, 64);
    const size_t more = stretch(&input);
    const uint64_t split_at = take_number(&input, 4);
    const size_t length = input.size ? input.size + more : 0, split = split_at % (length + 1);
    uint8_t *memory = exactly(misalignment + length), *bytes = memory + misalignment;
    for (size_t k = 0; k < length; k++) bytes[k] = (uint8_t)(input.data[k % input.size] + k / input.size);

    CHECK(length > 256 || by_table(before, bytes, length) == by_definition(before, bytes, length));
    for (int way = 0; way < SR_CRC32C_WAYS; way++)
        if (sr_crc32c_ways[way]) check_way(sr_crc32c_ways[way], before, bytes, length, split);
    CHECK(sr_crc32c(before, bytes, length) == by_table(before, bytes, length));
    free(memory);
    return 0;
}
