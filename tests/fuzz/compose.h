/* Messages written by a grammar that the input steers.

   Changed bytes rarely keep five nested sizes right; a writer that sets them itself gets every input
   deep into the parser. It writes what protobuf allows and no writer does: lists in chunks, packed or
   not, messages in pieces, entries back to front, unknown fields and groups. */
#ifndef SR_FUZZ_COMPOSE_H
#define SR_FUZZ_COMPOSE_H

#include "input.h"

enum { NAME_COUNT = 15 };
extern const char *const NAMES[NAME_COUNT];

/* A serialized SequenceExample (whose context is an Example's features); returns its size. */
size_t compose(struct input *input, uint8_t *out, size_t room);

#endif
