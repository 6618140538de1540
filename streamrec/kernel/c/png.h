/* The filters of PNG's rows, undone. Source: ISO/IEC 15948 (PNG), clause 9. */
#ifndef SR_PNG_H
#define SR_PNG_H

#include <stdbool.h>
#include <stdint.h>

enum { SR_MOST_PIXEL = 8 };

/* Undo the filters of rows of `size` bytes, each behind the byte that names its filter, into rows
   without that byte. A pixel has 1, 2, 3, 4, 6 or 8 bytes, and `size` is a multiple of it. False
   where a row has a filter that there is not. */
bool sr_unfilter(const uint8_t *filtered, int64_t rows, int64_t size, int pixel, uint8_t *out);

#endif
