/* Little-endian loads and stores at any address. */
#ifndef SR_MEMORY_H
#define SR_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "the kernel in C is for little-endian processors; the one in Python runs here"
#endif

#define SR_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define SR_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* Have the line so many bytes behind an address brought, whether or not there is one. */
static inline void sr_prefetch(const uint8_t *at, uintptr_t ahead) {
    __builtin_prefetch((const void *)((uintptr_t)at + ahead));
}

/* memcpy for whom a size of 0 may come with no address. */
static inline void sr_copy(void *to, const void *from, size_t size) {
    if (size) memcpy(to, from, size);
}

static inline uint32_t sr_load32(const uint8_t *at) {
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static inline uint64_t sr_load64(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* An integer in memory that others may change meanwhile: it is read once, so that what was checked is
   what is used. */
static inline int64_t sr_load_once(const int64_t *at) { return *(const volatile int64_t *)at; }

static inline void sr_store32(uint8_t *at, uint32_t word) { memcpy(at, &word, sizeof word); }

static inline void sr_store64(uint8_t *at, uint64_t word) { memcpy(at, &word, sizeof word); }

#endif
