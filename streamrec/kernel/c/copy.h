/* Copying bytes. */
#ifndef SR_COPY_H
#define SR_COPY_H

#include <stddef.h>
#include <string.h>

typedef void sr_copying(void *to, const void *from, size_t size);

/* Copy, and leave what was written in no cache, where the processor can: nothing is read of the memory
   that is written to, and what the caches hold stays there. */
extern sr_copying *sr_copy_past_caches;

/* All ways, for tests: the first works everywhere; `copy` is NULL where the processor lacks it. */
struct sr_copy_way {
    const char *name;
    sr_copying *copy;
};
enum { SR_COPY_WAYS = 3 };
extern struct sr_copy_way sr_copy_ways[SR_COPY_WAYS];

/* Choose; once, before any other call. */
void sr_copy_init(void);

/* From here on: a batch of such records is larger than a cache, and waits before anyone looks at it. */
enum { SR_PAST_CACHES = 64 << 10 };

/* memcpy for whom a size of 0 may come with no address. */
static inline void sr_copy(void *to, const void *from, size_t size) {
    if (size >= SR_PAST_CACHES)
        sr_copy_past_caches(to, from, size);
    else if (size)
        memcpy(to, from, size);
}

#endif
