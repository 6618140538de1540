/* What the fuzz targets share: an input cut into pieces, memory of just the size, and checks.

   Numbers that steer a target are taken from the input's end, so that the bytes before them, which are
   what the kernel is given, stay as they were written: a real shard or record makes a good input. */
#ifndef SR_FUZZ_INPUT_H
#define SR_FUZZ_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Abort, so that libFuzzer keeps the input; unlike assert, whatever the build defines. */
#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: violated: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                  \
        }                                                                             \
    } while (0)

struct input {
    const uint8_t *data;
    size_t size;
};

static inline uint8_t take_byte(struct input *input) { return input->size ? input->data[--input->size] : 0; }

/* A number of so many bytes; 0 where the input has no more. */
static inline uint64_t take_number(struct input *input, int bytes) {
    uint64_t number = 0;
    while (bytes--) number = number << 8 | take_byte(input);
    return number;
}

/* From 0 up to, but without, `limit`, which is not 0. */
static inline uint64_t take_below(struct input *input, uint64_t limit) {
    const int bytes = limit <= 1 << 8 ? 1 : limit <= 1 << 16 ? 2 : 8;
    return take_number(input, bytes) % limit;
}

static inline bool take_bool(struct input *input) { return take_byte(input) & 1; }

/* The next byte of what is not for steering. */
static inline uint8_t take_front(struct input *input) {
    if (!input->size) return 0;
    input->size--;
    return *input->data++;
}

/* Memory of just that size: reading or writing one byte beyond it is a finding. */
static inline void *exactly(size_t size) {
    void *memory = malloc(size);
    CHECK(memory);
    return memory;
}

static inline void *exactly_items(int64_t count, size_t size) {
    CHECK(count >= 0 && (uint64_t)count < SIZE_MAX / size);
    return exactly((size_t)count * size);
}

static inline uint8_t *copy_of(const void *data, size_t size) {
    uint8_t *memory = exactly(size);
    if (size) memcpy(memory, data, size);
    return memory;
}

#endif
