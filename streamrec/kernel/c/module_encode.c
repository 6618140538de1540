/* One mapping of plain values to a serialized Example: dicts from str to bytes, str, int, float, lists
   and tuples of them, and arrays. Whatever else there is, is left to the encoder in Python, which
   takes everything and knows the errors: this one answers None.

   Values are read in one pass, which writes numbers and lists of strings to scratch memory; single
   strings are referred to. Source: protobuf.dev/programming-guides/encoding, feature.proto. */
#include "module_encode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "varints.h"

enum code { NO_KIND = 0, STRINGS = 1, FLOATS = 2, INTS = 3 };
enum answer { DONE, NOT_PLAIN, FAILED };
enum { FIRST = 0x0a, SECOND = 0x12, LONGEST_VARINT = 10, FEW = 16 };
static const uint64_t LARGEST_MESSAGE = INT32_MAX;

/* Bytes that grow. */
struct scratch {
    uint8_t *data;
    size_t size, room;
};

/* A feature: its name, and its values as they stand in the list, without the list's head. */
struct entry {
    PyObject *key, *value;
    const char *name;
    size_t name_size;
    enum code code;
    bool is_one;         /* one string, of which `data` has no tag yet */
    const uint8_t *data; /* of one string; else NULL, and the values are in the scratch memory */
    size_t begin, size;
    uint64_t list, feature, whole; /* sizes of the messages around the values */
};

struct encoding {
    struct scratch scratch;
    struct entry *entries, few[FEW];
    Py_ssize_t count;
    PyObject *codes, *arrays;
};

static uint8_t *grow(struct scratch *scratch, size_t more) {
    if (!scratch->data || scratch->room - scratch->size < more) {
        const size_t room = 2 * scratch->room + more + 256;
        uint8_t *data = realloc(scratch->data, room);
        if (!data) return NULL;
        scratch->data = data;
        scratch->room = room;
    }
    return scratch->data + scratch->size;
}

static size_t varint_size(uint64_t value) {
    size_t size = 1;
    for (; value > 127; value >>= 7) size++;
    return size;
}

static uint8_t *put_varint(uint8_t *at, uint64_t value) {
    for (; value > 127; value >>= 7) *at++ = (uint8_t)(value | 128);
    *at++ = (uint8_t)value;
    return at;
}

static enum answer no_memory(void) {
    PyErr_NoMemory();
    return FAILED;
}

/* Forget an error, since the encoder in Python will meet it. */
static enum answer not_plain(void) {
    PyErr_Clear();
    return NOT_PLAIN;
}

static enum answer add_int(struct scratch *scratch, PyObject *value) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow || (number == -1 && PyErr_Occurred())) return not_plain();
    uint8_t *at = grow(scratch, LONGEST_VARINT);
    if (!at) return no_memory();
    scratch->size = (size_t)(put_varint(at, (uint64_t)number) - scratch->data);
    return DONE;
}

/* Up to this one, float32 holds each whole number. */
#define LARGEST_EXACT 16777216.0

/* Round to float32; only a number beyond its range is refused. */
static bool is_float32(double number) { return !(isfinite(number) && isinf((float)number)); }

static enum answer add_float(struct scratch *scratch, PyObject *value) {
    const bool is_float = PyFloat_CheckExact(value);
    const double number = is_float ? PyFloat_AsDouble(value) : PyLong_AsDouble(value);
    if ((number == -1.0 && PyErr_Occurred()) || !is_float32(number)) return not_plain();
    if (!is_float && fabs(number) > LARGEST_EXACT) return not_plain(); /* it may lose digits */
    uint8_t *at = grow(scratch, sizeof(float));
    if (!at) return no_memory();
    const float rounded = (float)number;
    memcpy(at, &rounded, sizeof rounded);
    scratch->size += sizeof rounded;
    return DONE;
}

/* The bytes of a str or of bytes; NULL for a str without UTF-8. */
static const char *text_of(PyObject *value, size_t *size) {
    char *bytes = NULL;
    Py_ssize_t count = 0;
    const char *text;
    if (PyBytes_CheckExact(value)) text = PyBytes_AsStringAndSize(value, &bytes, &count) ? NULL : bytes;
    else text = PyUnicode_AsUTF8AndSize(value, &count);
    *size = (size_t)count;
    return text;
}

static enum answer add_string(struct scratch *scratch, PyObject *value) {
    size_t size;
    const char *text = text_of(value, &size);
    if (!text) return not_plain();
    uint8_t *at = grow(scratch, 1 + LONGEST_VARINT + size);
    if (!at) return no_memory();
    *at++ = FIRST;
    at = put_varint(at, size);
    sr_copy(at, text, size);
    scratch->size = (size_t)(at + size - scratch->data);
    return DONE;
}

static enum code code_of(PyObject *value) {
    if (PyBytes_CheckExact(value) || PyUnicode_CheckExact(value)) return STRINGS;
    if (PyFloat_CheckExact(value)) return FLOATS;
    return PyLong_CheckExact(value) || PyBool_Check(value) ? INTS : NO_KIND;
}

/* A container that no other thread changes while its items are read: with a GIL, none runs. */
static PyObject *unchanging(PyObject *container) {
#ifdef Py_GIL_DISABLED
    if (PyDict_CheckExact(container)) return PyDict_Copy(container);
    if (PyList_CheckExact(container)) return PyList_AsTuple(container);
#endif
    return Py_NewRef(container);
}

/* A reference of its own to a dict's value, which other threads may replace; NULL where there is none. */
static PyObject *value_at(PyObject *dict, PyObject *key) {
#ifdef Py_GIL_DISABLED
    PyObject *value = NULL;
    PyDict_GetItemRef(dict, key, &value);
    return value;
#else
    return Py_XNewRef(PyDict_GetItemWithError(dict, key));
#endif
}

static PyObject *item_of(PyObject *items, Py_ssize_t k) {
    return PyList_CheckExact(items) ? PyList_GetItem(items, k) : PyTuple_GetItem(items, k);
}

/* The code of a list's values; of none where they are of other types, or of strings and numbers. */
static enum code code_of_list(PyObject *items, Py_ssize_t count) {
    enum code code = NO_KIND;
    for (Py_ssize_t k = 0; k < count; k++) {
        const enum code one = code_of(item_of(items, k));
        if (!one || (code && (code == STRINGS) != (one == STRINGS))) return NO_KIND;
        if (!code || one == FLOATS) code = one;
    }
    return code;
}

static enum answer add_items(struct scratch *scratch, struct entry *entry, PyObject *items) {
    const Py_ssize_t count = PyList_CheckExact(items) ? PyList_Size(items) : PyTuple_Size(items);
    entry->code = code_of_list(items, count);
    if (!entry->code) return count ? NOT_PLAIN : DONE;
    enum answer (*const add)(struct scratch *, PyObject *) =
        entry->code == STRINGS ? add_string : entry->code == FLOATS ? add_float : add_int;
    enum answer answer = DONE;
    for (Py_ssize_t k = 0; k < count && answer == DONE; k++) answer = add(scratch, item_of(items, k));
    return answer;
}

static enum answer add_list(struct scratch *scratch, struct entry *entry) {
    PyObject *items = unchanging(entry->value);
    if (!items) return FAILED;
    const enum answer answer = add_items(scratch, entry, items);
    Py_DECREF(items);
    return answer;
}

#define ADD_INTS(type)                                                                        \
    for (Py_ssize_t k = 0; k < count; k++) {                                                  \
        type number;                                                                          \
        memcpy(&number, (const uint8_t *)array->buf + (size_t)k * sizeof number, sizeof number); \
        at = put_varint(at, (uint64_t)(int64_t)number);                                       \
    }                                                                                         \
    return at

static uint8_t *put_ints(uint8_t *at, const Py_buffer *array, char format, Py_ssize_t count) {
    const bool is_signed = strchr("bhilq", format) != NULL;
    switch (array->itemsize) {
    case 1: if (is_signed) { ADD_INTS(int8_t); } else { ADD_INTS(uint8_t); }
    case 2: if (is_signed) { ADD_INTS(int16_t); } else { ADD_INTS(uint16_t); }
    case 4: if (is_signed) { ADD_INTS(int32_t); } else { ADD_INTS(uint32_t); }
    default: ADD_INTS(int64_t);
    }
}

static enum answer add_doubles(struct scratch *scratch, const Py_buffer *array, Py_ssize_t count) {
    uint8_t *at = scratch->data + scratch->size;
    for (Py_ssize_t k = 0; k < count; k++, at += sizeof(float)) {
        double number;
        memcpy(&number, (const uint8_t *)array->buf + (size_t)k * sizeof number, sizeof number);
        if (!is_float32(number)) return NOT_PLAIN;
        const float rounded = (float)number;
        memcpy(at, &rounded, sizeof rounded);
    }
    scratch->size += (size_t)count * sizeof(float);
    return DONE;
}

static enum answer add_numbers(struct scratch *scratch, struct entry *entry, const Py_buffer *array) {
    const char *format = array->format ? array->format : "B";
    /* One letter: of another byte order the format has a sign before it. */
    if (!*format || format[1] || !strchr("?bBhHiIlLqQfd", *format)) return NOT_PLAIN;
    const Py_ssize_t count = array->len / array->itemsize;
    entry->code = *format == 'f' || *format == 'd' ? FLOATS : INTS;
    if (entry->code == INTS && array->itemsize == 8 && strchr("LQ", *format)) return NOT_PLAIN; /* may be too large */
    const size_t most = (size_t)count * (entry->code == FLOATS ? sizeof(float) : LONGEST_VARINT);
    uint8_t *at = grow(scratch, most);
    if (!at) return no_memory();
    if (entry->code == INTS) {
        scratch->size = (size_t)(put_ints(at, array, *format, count) - scratch->data);
        return DONE;
    }
    if (*format == 'd') return add_doubles(scratch, array, count);
    sr_copy(at, array->buf, most);
    scratch->size += most;
    return DONE;
}

static enum answer add_array(struct scratch *scratch, struct entry *entry) {
    Py_buffer array;
    if (PyObject_GetBuffer(entry->value, &array, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0) return not_plain();
    const enum answer answer = add_numbers(scratch, entry, &array);
    PyBuffer_Release(&array);
    return answer;
}

static enum answer add_value(struct encoding *self, struct entry *entry) {
    struct scratch *scratch = &self->scratch;
    PyObject *value = entry->value;
    entry->begin = scratch->size;
    entry->code = code_of(value);
    if (entry->code == STRINGS) {
        entry->is_one = true;
        entry->data = (const uint8_t *)text_of(value, &entry->size);
        return entry->data ? DONE : not_plain();
    }
    enum answer answer = NOT_PLAIN;
    if (entry->code) answer = (entry->code == FLOATS ? add_float : add_int)(scratch, value);
    else if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) answer = add_list(scratch, entry);
    else if ((PyObject *)Py_TYPE(value) == self->arrays) answer = add_array(scratch, entry);
    entry->size = scratch->size - entry->begin;
    return answer;
}

/* Whether the codes, if there are any, have the feature's. */
static enum answer check_code(const struct encoding *self, const struct entry *entry) {
    if (self->codes == Py_None || !entry->code) return DONE;
    PyObject *known = value_at(self->codes, entry->key);
    /* A feature that has no code yet: the encoder in Python takes its type. */
    if (!known) return PyErr_Occurred() ? FAILED : NOT_PLAIN;
    const long code = PyLong_AsLong(known);
    Py_DECREF(known);
    return code == (long)entry->code ? DONE : not_plain();
}

static int compare(const void *one, const void *other) {
    const struct entry *a = one, *b = other;
    const int order = memcmp(a->name, b->name, a->name_size < b->name_size ? a->name_size : b->name_size);
    return order ? order : (a->name_size > b->name_size) - (a->name_size < b->name_size);
}

static enum answer read_entries(struct encoding *self, PyObject *features) {
    Py_ssize_t at = 0, number = 0;
    PyObject *key, *value;
    while (PyDict_Next(features, &at, &key, &value)) {
        struct entry *entry = &self->entries[number++];
        *entry = (struct entry){.key = key, .value = value};
        if (!PyUnicode_CheckExact(key)) return NOT_PLAIN;
        entry->name = text_of(key, &entry->name_size);
        if (!entry->name) return not_plain();
    }
    /* By their bytes, so that equal mappings give equal messages. */
    qsort(self->entries, (size_t)self->count, sizeof *self->entries, compare);
    enum answer answer = DONE;
    for (Py_ssize_t k = 0; k < self->count && answer == DONE; k++) {
        answer = add_value(self, &self->entries[k]);
        if (answer == DONE) answer = check_code(self, &self->entries[k]);
    }
    return answer;
}

static uint64_t framed_size(uint64_t size) { return 1 + varint_size(size) + size; }

/* Compute the sizes of a feature's messages, and return that of its entry in the map. */
static uint64_t measure(struct entry *entry) {
    const bool has_head = entry->is_one || (entry->size && entry->code != STRINGS);
    entry->list = has_head ? framed_size(entry->size) : entry->size;
    entry->feature = entry->code ? framed_size(entry->list) : 0;
    entry->whole = framed_size(entry->name_size) + framed_size(entry->feature);
    return framed_size(entry->whole);
}

static uint8_t *put_head(uint8_t *at, uint8_t tag, uint64_t size) {
    *at++ = tag;
    return put_varint(at, size);
}

static uint8_t *put_entry(uint8_t *at, const struct entry *entry, const struct scratch *scratch) {
    at = put_head(at, FIRST, entry->whole);
    at = put_head(at, FIRST, entry->name_size);
    sr_copy(at, entry->name, entry->name_size);
    at = put_head(at + entry->name_size, SECOND, entry->feature);
    if (!entry->code) return at;
    at = put_head(at, (uint8_t)(entry->code << 3 | 2), entry->list);
    if (entry->list != entry->size) at = put_head(at, FIRST, entry->size);
    sr_copy(at, entry->is_one ? entry->data : scratch->data + entry->begin, entry->size);
    return at + entry->size;
}

static PyObject *put_all(struct encoding *self) {
    uint64_t size = 0;
    for (Py_ssize_t k = 0; k < self->count; k++) size += measure(&self->entries[k]);
    if (size > LARGEST_MESSAGE - 6) return Py_NewRef(Py_None); /* a tag, and a size of five bytes */
    PyObject *result = PyBytes_FromStringAndSize(NULL, self->count ? (Py_ssize_t)framed_size(size) : 0);
    if (!result || !self->count) return result;
    uint8_t *at = put_head((uint8_t *)PyBytes_AsString(result), FIRST, size);
    for (Py_ssize_t k = 0; k < self->count; k++) at = put_entry(at, &self->entries[k], &self->scratch);
    return result;
}

static PyObject *encode(struct encoding *self, PyObject *features) {
    PyObject *result = NULL;
    self->count = PyDict_Size(features);
    self->entries = self->count <= FEW ? self->few : calloc((size_t)self->count, sizeof *self->entries);
    if (!self->entries) return PyErr_NoMemory();
    const enum answer answer = read_entries(self, features);
    if (answer == DONE) result = put_all(self);
    else if (answer == NOT_PLAIN) result = Py_NewRef(Py_None);
    if (self->entries != self->few) free(self->entries);
    free(self->scratch.data);
    return result;
}

PyObject *py_encode(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *features;
    struct encoding self = {.count = 0};
    if (!PyArg_ParseTuple(args, "OOO", &features, &self.codes, &self.arrays)) return NULL;
    if (self.codes != Py_None && !PyDict_Check(self.codes)) return fail(PyExc_TypeError, "codes must be a dict"), NULL;
    if (!PyDict_CheckExact(features)) return Py_NewRef(Py_None);
    /* The entries point into its keys and values. */
    features = unchanging(features);
    if (!features) return NULL;
    PyObject *result = encode(&self, features);
    Py_DECREF(features);
    return result;
}
