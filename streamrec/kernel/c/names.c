#include "names.h"

#include <stdlib.h>

/* Few bytes as a word: those of a short text overlap, none is read twice as far as its size. */
static inline uint64_t head_of(const uint8_t *text, uint32_t size) {
    if (size >= 8) return sr_load64(text);
    if (size >= 4) return sr_load32(text);
    return size ? (uint64_t)text[0] | (uint64_t)text[size / 2] << 8 : 0;
}

static inline uint64_t tail_of(const uint8_t *text, uint32_t size) {
    if (size >= 8) return sr_load64(text + size - 8);
    if (size >= 4) return sr_load32(text + size - 4);
    return size ? text[size - 1] : 0;
}

static inline bool is_name(const struct sr_name *name, const struct sr_name *wanted) {
    if (name->size != wanted->size || name->head != wanted->head || name->tail != wanted->tail) return false;
    /* Up to 16 bytes, head and tail have been all of it. */
    return name->size <= 16 || memcmp(name->text, wanted->text, name->size) == 0;
}

/* A multiplicative hash; the constant is 2^64 over the golden ratio. It takes in every byte: names that
   are alike at both ends are common, and would all have one slot. */
static inline uint32_t slot_of(const struct sr_names *names, const struct sr_name *name) {
    const uint64_t constant = 0x9e3779b97f4a7c15u;
    uint64_t mixed = (name->head ^ (name->tail << 23 | name->tail >> 41) ^ name->size) * constant;
    for (uint64_t k = 8; k + 8 < name->size; k += 8) /* the tail has the rest */
        mixed = (mixed ^ mixed >> 32 ^ sr_load64(name->text + k)) * constant;
    return (uint32_t)(mixed >> 32) & names->mask;
}

bool sr_names_init(struct sr_names *names, uint32_t most) {
    uint32_t slots = 4;
    /* At most a quarter full: searches are short, and always meet an empty slot. */
    while (slots < 4 * (uint64_t)most) slots *= 2;
    /* One more, as calloc of nothing may give NULL. */
    names->names = calloc((size_t)most + 1, sizeof *names->names);
    names->table = calloc(slots, sizeof *names->table);
    names->mask = slots - 1;
    return names->names && names->table;
}

void sr_names_add(struct sr_names *names, const uint8_t *text, uint32_t size) {
    struct sr_name *name = &names->names[names->count++];
    *name = (struct sr_name){text, size, head_of(text, size), tail_of(text, size)};
    uint32_t slot = slot_of(names, name);
    while (names->table[slot]) slot = (slot + 1) & names->mask;
    names->table[slot] = names->count;
}

void sr_names_free(struct sr_names *names) {
    free(names->names);
    free(names->table);
}

int64_t sr_names_find(const struct sr_names *names, const uint8_t *text, uint32_t size, uint32_t likely) {
    const struct sr_name wanted = {text, size, head_of(text, size), tail_of(text, size)};
    if (SR_LIKELY(likely < names->count && is_name(&names->names[likely], &wanted))) return likely;
    uint32_t slot = slot_of(names, &wanted);
    for (uint32_t number; (number = names->table[slot]); slot = (slot + 1) & names->mask)
        if (is_name(&names->names[number - 1], &wanted)) return number - 1;
    return -1;
}
