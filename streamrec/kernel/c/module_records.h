/* message(rows, head, fields): the columns of messages, for joining, and the bytes that no message
   exceeds; a field is
   (width, heads, omits_last, values, splits, missing): the width of items in bytes, 0 for integers to
   write as varints, or -1 for a tuple of bytes without splits. missing: None, or one byte a row.

   join(message, first, offsets, out, framed): (rows, needed), the rows that were written, and the
   bytes that the next one takes, if it did not fit. */
#ifndef SR_MODULE_RECORDS_H
#define SR_MODULE_RECORDS_H

#include "module.h"

PyObject *py_message(PyObject *module, PyObject *args);
PyObject *py_join(PyObject *module, PyObject *args);

#endif
