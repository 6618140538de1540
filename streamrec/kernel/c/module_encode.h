/* encode(features, codes, arrays): the serialized Example of a dict of plain values, or None where
   they are not plain, or of other types than codes says.

   codes: a dict from names to the fields of a Feature, or None; arrays: NumPy's type of arrays. */
#ifndef SR_MODULE_ENCODE_H
#define SR_MODULE_ENCODE_H

#include "module.h"

PyObject *py_encode(PyObject *module, PyObject *args);

#endif
