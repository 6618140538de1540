/* The form in which writers give a feature of few numbers, recognised at a glance.

   An entry of the map of features whose sizes take one byte each is, for a list of n bytes,

       0a n+8+l  0a l name  12 n+4  1a n+2  0a n  values

   (with 12 for 1a before floats), l being the name's size. What follows the name is six bytes that
   depend on n alone, and n follows from the entry's size: two comparisons tell whether an entry is
   the one that is expected. Every other form is right too, and read field by field. */
#ifndef SR_LIKELY_H
#define SR_LIKELY_H

#include "examples.h"

struct sr_likely {
    uint32_t name_size; /* 0: the plan's feature has no such form */
    uint64_t head, head_mask, tail;
    const uint8_t *name;
    uint64_t header; /* the six bytes for n = 0 */
};

enum { SR_BEFORE_NAME = 4, SR_AFTER_NAME = 6, SR_READ_AHEAD = 8 };

static inline struct sr_likely sr_likely_form(const struct sr_plan *plan, const struct sr_name *name) {
    struct sr_likely likely = {.name = name->text};
    /* With a longer name, the entry's size would hardly fit one byte. */
    if (plan->kind != SR_FIXED || plan->type == SR_STRINGS || name->size == 0 || name->size > 100) return likely;
    uint8_t head[8] = {0};
    memcpy(head, name->text, name->size < 8 ? name->size : 8);
    likely.name_size = name->size;
    likely.head = sr_load64(head);
    likely.head_mask = name->size < 8 ? UINT64_MAX >> (64 - 8 * name->size) : UINT64_MAX;
    likely.tail = name->tail;
    likely.header = UINT64_C(0x0a02000412) | (uint64_t)SR_TAG(plan->type, SR_DELIMITED) << 16;
    return likely;
}

static inline bool sr_is_likely_name(const struct sr_likely *likely, const uint8_t *text) {
    if ((sr_load64(text) & likely->head_mask) != likely->head) return false;
    if (likely->name_size <= 8) return true;
    if (sr_load64(text + likely->name_size - 8) != likely->tail) return false;
    return likely->name_size <= 16 || memcmp(text, likely->name, likely->name_size) == 0;
}

/* The values of the entry whose tag is at `at`, if it has that form, with their size in bytes; else
   NULL. SR_READ_AHEAD bytes from the values' begin may then be read. */
static inline const uint8_t *sr_likely_values(const struct sr_likely *likely, const uint8_t *at, const uint8_t *end,
                                              uint32_t *size) {
    const ptrdiff_t before = SR_BEFORE_NAME + (ptrdiff_t)likely->name_size + SR_AFTER_NAME;
    if (end - at < before + SR_READ_AHEAD || !likely->name_size) return NULL;
    /* Below 0 it wraps around to a large number, which is refused below. */
    *size = (uint32_t)at[1] - likely->name_size - 8;
    if (at[0] != 0x0a || at[1] >= 128 || at[2] != 0x0a || at[3] != likely->name_size) return NULL;
    if (*size >= 128 || *size > end - at - before || !sr_is_likely_name(likely, at + SR_BEFORE_NAME)) return NULL;
    const uint64_t header = sr_load64(at + before - SR_AFTER_NAME) & 0xffffffffffff;
    /* Three of the six bytes are sizes, which all grow with n. */
    return header == likely->header + *size * UINT64_C(0x010001000100) ? at + before : NULL;
}

#endif
