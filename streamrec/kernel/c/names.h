/* Which column a feature's name belongs to. */
#ifndef SR_NAMES_H
#define SR_NAMES_H

#include "memory.h"

struct sr_name {
    const uint8_t *text;
    uint32_t size;
    uint64_t head, tail; /* its first and its last 8 bytes, which overlap in a short name */
};

struct sr_names {
    struct sr_name *names;
    uint32_t count;
    uint32_t *table; /* numbers of names + 1, 0 where none; open addressing */
    uint32_t mask;
};

/* Make room in a table of zeros for so many names; whether there was memory for it. */
bool sr_names_init(struct sr_names *names, uint32_t most);
/* Add the next name, whose text outlives the table. */
void sr_names_add(struct sr_names *names, const uint8_t *text, uint32_t size);
void sr_names_free(struct sr_names *names);

/* The number of the name, or -1. It is looked for at `likely` first. */
int64_t sr_names_find(const struct sr_names *names, const uint8_t *text, uint32_t size, uint32_t likely);

#endif
