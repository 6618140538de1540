/* The glue of messages from columns: it holds the columns' memory while there is a message. */
#include "module_records.h"

#include <stdlib.h>

#include "records.h"

enum { VIEWS_A_FIELD = 3, MOST_FIELDS = 1 << 24 };

/* A message, and the objects whose memory it refers to. */
struct held_message {
    struct sr_message message;
    struct sr_field *fields;
    struct views views;
    PyObject *head, *columns;
};

static const char MESSAGE[] = "streamrec.kernel.message";

static void message_free(struct held_message *held) {
    for (int64_t k = 0; held->fields && k < held->message.field_count; k++) free((void *)held->fields[k].texts);
    free(held->fields);
    views_release(&held->views);
    Py_XDECREF(held->head);
    Py_XDECREF(held->columns);
    free(held);
}

static void message_destroy(PyObject *capsule) { message_free(PyCapsule_GetPointer(capsule, MESSAGE)); }

/* The memory of bytes, which does not change; it lives as long as the object. */
static bool read_octets(PyObject *object, struct sr_octets *octets) {
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(object, &data, &size) < 0) return false;
    *octets = (struct sr_octets){(const uint8_t *)data, size};
    return true;
}

static bool read_heads(PyObject *heads, struct sr_field *field) {
    field->head_count = (int)PyTuple_Size(heads);
    if (PyTuple_Size(heads) > SR_MOST_HEADS || (field->omits_last && !field->head_count))
        return fail(PyExc_ValueError, "a field has too many heads, or none to omit");
    for (int k = 0; k < field->head_count; k++)
        if (!read_octets(PyTuple_GetItem(heads, k), &field->heads[k])) return false;
    return true;
}

static bool read_texts(PyObject *texts, struct sr_field *field, int64_t rows) {
    if (!PyTuple_Check(texts) || PyTuple_Size(texts) != rows) return fail(PyExc_ValueError, "not one string a row");
    struct sr_octets *octets = calloc((size_t)rows + 1, sizeof *octets);
    if (!octets) return fail(PyExc_MemoryError, "no memory for the strings' addresses");
    field->texts = octets;
    for (int64_t row = 0; row < rows; row++)
        if (!read_octets(PyTuple_GetItem(texts, row), &octets[row])) return false;
    return true;
}

static bool read_numbers(struct views *views, PyObject *values, PyObject *splits, struct sr_field *field, int64_t rows) {
    int64_t count;
    if (field->width != 1 && field->width != 4 && field->width != 8) return fail(PyExc_ValueError, "items of another width");
    field->values = view(views, values, field->width, READ, &field->count);
    field->splits = view(views, splits, sizeof *field->splits, READ, &count);
    return !PyErr_Occurred() && (count == rows + 1 || fail(PyExc_ValueError, "other splits than the rows have"));
}

static bool read_missing(struct views *views, PyObject *missing, struct sr_field *field, int64_t rows) {
    int64_t count = rows;
    if (missing != Py_None) field->missing = view(views, missing, 1, READ, &count);
    return !PyErr_Occurred() && (count == rows || fail(PyExc_ValueError, "a field is missing in other rows"));
}

/* One field: (width, 0 for integers and -1 for texts; heads, omits_last, values, splits, missing). */
static bool read_field(struct held_message *held, PyObject *object, struct sr_field *field) {
    PyObject *heads, *values, *splits, *missing;
    int form, omits_last;
    const int64_t rows = held->message.rows;
    if (!PyArg_ParseTuple(object, "iO!pOOO", &form, &PyTuple_Type, &heads, &omits_last, &values, &splits, &missing))
        return false;
    field->form = form < 0 ? SR_TEXTS : form ? SR_ITEMS : SR_INTEGERS;
    field->width = form ? form : 8;
    field->omits_last = omits_last;
    if (!read_heads(heads, field) || !read_missing(&held->views, missing, field, rows)) return false;
    return form < 0 ? read_texts(values, field, rows) : read_numbers(&held->views, values, splits, field, rows);
}

static bool read_message(struct held_message *held, int64_t rows, Py_ssize_t count) {
    if (rows < 0 || rows > PTRDIFF_MAX / 64 || count > MOST_FIELDS)
        return fail(PyExc_ValueError, "too many rows or fields");
    held->message.rows = rows;
    if (!views_init(&held->views, VIEWS_A_FIELD * count)) return false;
    held->fields = calloc((size_t)count + 1, sizeof *held->fields);
    if (!held->fields) return fail(PyExc_MemoryError, "no memory for the fields");
    held->message.fields = held->fields;
    held->message.field_count = count;
    if (!read_octets(held->head, &held->message.head)) return false;
    for (Py_ssize_t k = 0; k < count; k++)
        if (!read_field(held, PyTuple_GetItem(held->columns, k), &held->fields[k])) return false;
    return true;
}

PyObject *py_message(PyObject *module, PyObject *args) {
    (void)module;
    long long rows;
    PyObject *head, *columns;
    if (!PyArg_ParseTuple(args, "LOO!", &rows, &head, &PyTuple_Type, &columns)) return NULL;
    struct held_message *held = calloc(1, sizeof *held);
    if (!held) return PyErr_NoMemory();
    held->head = Py_NewRef(head);
    /* The message points into the memory of these objects. */
    held->columns = Py_NewRef(columns);
    PyObject *capsule = NULL;
    if (read_message(held, rows, PyTuple_Size(columns))) capsule = PyCapsule_New(held, MESSAGE, message_destroy);
    if (!capsule) {
        message_free(held);
        return NULL;
    }
    return Py_BuildValue("(NL)", capsule, (long long)sr_most(&held->message));
}

static PyObject *result_of_joining(struct sr_joined joined, int64_t first) {
    const long long row = (long long)(first + joined.rows);
    switch (joined.fault) {
    case SR_JOINED: return Py_BuildValue("(LL)", (long long)joined.rows, (long long)joined.needed);
    case SR_NO_ROOM_TO_JOIN: return PyErr_NoMemory();
    case SR_TOO_LONG: return PyErr_Format(PyExc_OverflowError, "row %lld is longer than int64 counts", row);
    case SR_CHANGED:
        return PyErr_Format(PyExc_ValueError,
                            "the values of row %lld were changed while they were encoded; encode a copy", row);
    default: return PyErr_Format(PyExc_ValueError, "the splits of row %lld do not rise within the values", row);
    }
}

PyObject *py_join(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *capsule, *offsets, *out, *result = NULL;
    long long first;
    int framed;
    struct views views;
    if (!PyArg_ParseTuple(args, "OLOOp", &capsule, &first, &offsets, &out, &framed)) return NULL;
    const struct held_message *held = PyCapsule_GetPointer(capsule, MESSAGE);
    if (!held || !views_init(&views, 2)) return NULL;
    int64_t count, room = INT64_MAX;
    int64_t *ends = view(&views, offsets, sizeof *ends, WRITE, &count);
    uint8_t *to = out == Py_None ? NULL : view(&views, out, 1, WRITE, &room);
    if (!PyErr_Occurred()) {
        if (first < 0 || count < 1 || first > held->message.rows || count - 1 > held->message.rows - first) {
            fail(PyExc_ValueError, "the offsets are not those of rows of the message");
        } else {
            struct sr_joined joined;
            Py_BEGIN_ALLOW_THREADS;
            joined = sr_join(&held->message, first, count - 1, framed, to, room, ends);
            Py_END_ALLOW_THREADS;
            result = result_of_joining(joined, first);
        }
    }
    views_release(&views);
    return result;
}
