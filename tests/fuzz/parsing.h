/* What the targets of Examples and of SequenceExamples share: a schema and records out of an input,
   memory as streamrec/kernel/native/examples.py gives it, and what must hold of the result. */
#ifndef SR_FUZZ_PARSING_H
#define SR_FUZZ_PARSING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Choose the ways of the processor; once. */
void parsing_init(void);

/* One input, parsed as Examples or as SequenceExamples in every manner. */
void check_parsing(const uint8_t *data, size_t size, bool is_sequence);

#endif
