/* The glue between Python and the kernel: buffers in, buffers that the caller allocated out, codes
   back. It checks sizes, holds the buffers, and releases the GIL. Nothing here knows what bytes
   mean, and nothing elsewhere knows Python. */
#include "module.h"

#include <pthread.h>
#include <stdlib.h>

#include "crc32c.h"
#include "examples.h"
#include "frames.h"
#include "module_encode.h"
#include "module_records.h"
#include "packed.h"
#include "png.h"

/* Below so many bytes a thread switch costs more than the work. */
enum { WORTH_RELEASING = 1 << 15 };

/* Rows of records: (buffers, buffer_index, offsets, lengths); and all buffers of the call. */
struct held_rows {
    struct views views;
    struct sr_rows rows;
    struct sr_buffer *buffers;
    int64_t size;
};

static bool hold_buffers(struct held_rows *held, PyObject *buffers) {
    const Py_ssize_t count = PyTuple_Size(buffers);
    held->buffers = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *held->buffers);
    if (!held->buffers) return fail(PyExc_MemoryError, "no memory for the buffers' addresses");
    for (Py_ssize_t k = 0; k < count; k++) {
        struct sr_buffer *buffer = &held->buffers[k];
        buffer->data = view(&held->views, PyTuple_GetItem(buffers, k), 1, READ, &buffer->size);
    }
    held->rows.buffers = held->buffers;
    held->rows.buffer_count = count;
    return !PyErr_Occurred();
}

static bool hold_arrays(struct views *views, struct sr_rows *rows, PyObject *index, PyObject *offsets, PyObject *lengths) {
    int64_t counts[3] = {0, 0, 0};
    rows->buffer_index = view(views, index, sizeof *rows->buffer_index, READ, &counts[0]);
    rows->offsets = view(views, offsets, sizeof *rows->offsets, READ, &counts[1]);
    rows->lengths = view(views, lengths, sizeof *rows->lengths, READ, &counts[2]);
    if (PyErr_Occurred()) return false;
    rows->count = counts[0];
    if (counts[1] != counts[0] || counts[2] != counts[0])
        return fail(PyExc_ValueError, "buffer_index, offsets and lengths have different lengths");
    return true;
}

static bool check_rows(struct held_rows *held) {
    const int64_t outside = sr_row_outside(&held->rows);
    if (outside >= 0) {
        PyErr_Format(PyExc_ValueError, "row %lld lies outside of its buffer", (long long)outside);
        return false;
    }
    held->size = sr_rows_size(&held->rows);
    return held->size >= 0 || fail(PyExc_OverflowError, "the rows together are longer than int64 counts");
}

/* Hold rows, with room for `more` buffers; to release in any case. */
static bool hold_rows(struct held_rows *held, PyObject *object, Py_ssize_t more) {
    enum { ARRAYS = 3 };
    PyObject *buffers, *index, *offsets, *lengths;
    *held = (struct held_rows){.size = 0};
    return PyArg_ParseTuple(object, "O!OOO", &PyTuple_Type, &buffers, &index, &offsets, &lengths) &&
           views_init(&held->views, PyTuple_Size(buffers) + ARRAYS + more) && hold_buffers(held, buffers) &&
           hold_arrays(&held->views, &held->rows, index, offsets, lengths) && check_rows(held);
}

static void release_rows(struct held_rows *held) {
    PyMem_Free(held->buffers);
    views_release(&held->views);
}

static PyObject *py_crc32c(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    unsigned int value = 0;
    if (!PyArg_ParseTuple(args, "y*I", &data, &value)) return NULL;
    const size_t size = (size_t)data.len;
    if (data.len < WORTH_RELEASING) {
        value = sr_crc32c(value, data.buf, size);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        value = sr_crc32c(value, data.buf, size);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(value);
}

static PyObject *py_scan(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *buffer, *offsets, *lengths, *result = NULL;
    long long begin, end, large;
    int check_crc;
    struct views views;
    if (!PyArg_ParseTuple(args, "OLLpLOO", &buffer, &begin, &end, &check_crc, &large, &offsets, &lengths)) return NULL;
    if (!views_init(&views, 3)) return NULL;
    int64_t size = 0, capacity = 0, capacity_too = 0;
    const uint8_t *data = view(&views, buffer, 1, READ, &size);
    int64_t *out_offsets = view(&views, offsets, 8, WRITE, &capacity);
    int64_t *out_lengths = view(&views, lengths, 8, WRITE, &capacity_too);
    if (!PyErr_Occurred()) {
        if (begin < 0 || begin > end || end > size || capacity != capacity_too) {
            fail(PyExc_ValueError, "begin and end do not lie in the buffer in this order, or the arrays differ");
        } else {
            struct sr_scan scan;
            PyThreadState *const others = sr_scan_is_long(data, begin, end, check_crc, large) ? PyEval_SaveThread() : NULL;
            scan = sr_scan_frames(data, begin, end, check_crc, large, out_offsets, out_lengths, capacity);
            if (others) PyEval_RestoreThread(others);
            result = Py_BuildValue("(LLLi)", (long long)scan.records, (long long)scan.stop, (long long)scan.needed,
                                   (int)scan.fault);
        }
    }
    views_release(&views);
    return result;
}

/* corrupt_row(rows, large): the interpreter is let go of only where there is something to check */
static PyObject *py_corrupt_row(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *rows;
    long long large;
    int64_t corrupt = -1;
    struct held_rows held;
    if (!PyArg_ParseTuple(args, "OL", &rows, &large)) return NULL;
    if (hold_rows(&held, rows, 0) && sr_large_row(&held.rows, 0, large) >= 0) {
        Py_BEGIN_ALLOW_THREADS;
        corrupt = sr_corrupt_row(&held.rows, large);
        Py_END_ALLOW_THREADS;
    }
    release_rows(&held);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(corrupt);
}

/* Copy the payloads of rows, and say where they begin; or, without offsets, write their frames. */
static PyObject *copy_rows(PyObject *object, PyObject *out, PyObject *offsets) {
    struct held_rows held;
    int64_t size = 0, count = 0;
    if (hold_rows(&held, object, 2)) {
        const int64_t framing = offsets ? 0 : held.rows.count * (SR_HEADER + SR_FOOTER);
        uint8_t *values = view(&held.views, out, 1, WRITE, &size);
        int64_t *begins = offsets ? view(&held.views, offsets, 8, WRITE, &count) : NULL;
        if (!PyErr_Occurred() && (size != held.size + framing || (offsets && count != held.rows.count + 1)))
            fail(PyExc_ValueError, "the rows take another number of bytes or offsets");
        if (!PyErr_Occurred()) {
            Py_BEGIN_ALLOW_THREADS;
            if (offsets) sr_gather(&held.rows, values, begins);
            else sr_frame_rows(&held.rows, values);
            Py_END_ALLOW_THREADS;
        }
    }
    release_rows(&held);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *py_frame(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *rows, *out;
    return PyArg_ParseTuple(args, "OO", &rows, &out) ? copy_rows(rows, out, NULL) : NULL;
}

static PyObject *py_gather(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *rows, *out, *offsets;
    return PyArg_ParseTuple(args, "OOO", &rows, &out, &offsets) ? copy_rows(rows, out, offsets) : NULL;
}

/* unfilter(filtered, rows, size, pixel, out): whether all rows have filters that there are */
static PyObject *py_unfilter(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *filtered, *out;
    long long rows, size;
    int pixel;
    bool done = false;
    struct views views;
    if (!PyArg_ParseTuple(args, "OLLiO", &filtered, &rows, &size, &pixel, &out)) return NULL;
    if (!views_init(&views, 2)) return NULL;
    int64_t given = 0, room = 0, wanted, all;
    const uint8_t *in = view(&views, filtered, 1, READ, &given);
    uint8_t *to = view(&views, out, 1, WRITE, &room);
    if (!PyErr_Occurred()) {
        const bool is_pixel = pixel > 0 && pixel <= SR_MOST_PIXEL && pixel != 5 && pixel != 7;
        if (!is_pixel || rows < 0 || size < 0 || size % pixel || __builtin_mul_overflow(rows, size, &all) ||
            __builtin_add_overflow(all, rows, &wanted) || given != wanted || room != all) {
            fail(PyExc_ValueError, "the rows take another number of bytes");
        } else {
            Py_BEGIN_ALLOW_THREADS;
            done = sr_unfilter(in, rows, size, pixel, to);
            Py_END_ALLOW_THREADS;
        }
    }
    views_release(&views);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(done);
}

/* A schema, and the objects whose memory it refers to. */
struct held_schema {
    struct sr_schema schema;
    PyObject *plans;
};

static const char SCHEMA[] = "streamrec.kernel.schema";

static void schema_free(struct held_schema *held) {
    sr_names_free(&held->schema.feature_names);
    sr_names_free(&held->schema.list_names);
    free(held->schema.plans);
    Py_XDECREF(held->plans);
    free(held);
}

static void schema_destroy(PyObject *capsule) { schema_free(PyCapsule_GetPointer(capsule, SCHEMA)); }

/* Bytes of one value in a column's memory. */
static int width_of(const struct sr_plan *plan) {
    return plan->type == SR_INTS ? 8 : plan->type == SR_FLOATS ? 4 : 1;
}

static bool is_valid(const struct sr_plan *plan, Py_ssize_t ends_size) {
    if (plan->kind > SR_STEPS || plan->type < SR_STRINGS || plan->type > SR_INTS) return false;
    if (plan->kind == SR_RAW && plan->type != SR_STRINGS) return false;
    if (plan->count < 0 || plan->count > INT64_MAX / 8) return false;
    if (plan->count && plan->kind != SR_FIXED && plan->kind != SR_RAW) return false;
    if (!plan->may_lack) return true;
    if (plan->kind == SR_FIXED && plan->type == SR_STRINGS) {
        int64_t before = 0;
        for (int64_t k = 0; k < ends_size / 8; before = plan->ends[k++])
            if (plan->ends[k] < before) return false;
        return ends_size == 8 * plan->count && before == plan->values_size;
    }
    /* A default of another size would be read, or written, beyond its end. */
    return plan->values_size == plan->count * width_of(plan);
}

/* One plan: (name, kind, type, count, may_lack, default values, ends of the default's strings). */
static bool read_plan(PyObject *object, struct sr_plan *plan, struct sr_names *names) {
    const char *text, *values, *ends;
    Py_ssize_t text_size, values_size, ends_size;
    int kind, type, may_lack;
    long long count;
    if (!PyArg_ParseTuple(object, "y#iiLpy#y#", &text, &text_size, &kind, &type, &count, &may_lack, &values, &values_size,
                          &ends, &ends_size))
        return false;
    *plan = (struct sr_plan){(enum sr_kind)kind, (enum sr_type)type, count, may_lack, (const uint8_t *)values, values_size,
                             (const int64_t *)(const void *)ends};
    if (text_size > INT32_MAX || !is_valid(plan, ends_size)) return fail(PyExc_ValueError, "a plan contradicts itself");
    sr_names_add(names, (const uint8_t *)text, (uint32_t)text_size);
    return true;
}

static bool fill_schema(struct sr_schema *schema, PyObject *plans) {
    const uint32_t count = schema->features + schema->lists;
    schema->plans = calloc((size_t)count + 1, sizeof *schema->plans);
    bool done = schema->plans && sr_names_init(&schema->feature_names, schema->features) &&
                sr_names_init(&schema->list_names, schema->lists);
    if (!done) PyErr_NoMemory();
    for (uint32_t k = 0; k < count && done; k++) {
        const bool of_lists = k >= schema->features;
        done = read_plan(PyTuple_GetItem(plans, k), &schema->plans[k], of_lists ? &schema->list_names : &schema->feature_names);
        if (done && (schema->plans[k].kind == SR_STEPS) != of_lists)
            done = fail(PyExc_ValueError, "a plan contradicts itself: only a feature list has steps");
    }
    return done;
}

/* schema(plans, number of them that are features' and not lists', whether of a SequenceExample) */
static PyObject *py_schema(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *plans;
    Py_ssize_t features;
    int is_sequence;
    if (!PyArg_ParseTuple(args, "O!np", &PyTuple_Type, &plans, &features, &is_sequence)) return NULL;
    const Py_ssize_t count = PyTuple_Size(plans);
    /* Few enough that no product with their number overflows. */
    if (features < 0 || features > count || count > 1 << 24) return fail(PyExc_ValueError, "too many plans"), NULL;
    struct held_schema *held = calloc(1, sizeof *held);
    if (!held) return PyErr_NoMemory();
    /* The schema points into the bytes of these objects. */
    held->plans = Py_NewRef(plans);
    held->schema.features = (uint32_t)features;
    held->schema.lists = (uint32_t)(count - features);
    held->schema.is_sequence = is_sequence;
    PyObject *capsule = fill_schema(&held->schema, plans) ? PyCapsule_New(held, SCHEMA, schema_destroy) : NULL;
    if (!capsule) schema_free(held);
    return capsule;
}

/* What measuring and filling have in common. */
struct parsing {
    struct held_rows held;
    const struct sr_schema *schema;
    struct sr_column *columns;
    PyObject *memory; /* a tuple of columns' tuples */
};

enum { BUFFERS_A_COLUMN = 4 };

/* Take (schema, rows, memory), each column's memory by `take`; to end in any case. */
static bool begin_parsing(struct parsing *self, PyObject *args, bool (*take)(struct parsing *, uint32_t)) {
    PyObject *capsule, *rows;
    *self = (struct parsing){.memory = NULL};
    if (!PyArg_ParseTuple(args, "OOO", &capsule, &rows, &self->memory)) return false;
    const struct held_schema *held = PyCapsule_GetPointer(capsule, SCHEMA);
    if (!held) return false;
    self->schema = &held->schema;
    const uint32_t count = self->schema->features + self->schema->lists;
    if (!PyTuple_Check(self->memory) || PyTuple_Size(self->memory) != count)
        return fail(PyExc_ValueError, "not a tuple a plan");
    self->columns = calloc((size_t)count + 1, sizeof *self->columns);
    if (!self->columns) return fail(PyExc_MemoryError, "no memory for the columns' addresses");
    bool done = hold_rows(&self->held, rows, (Py_ssize_t)BUFFERS_A_COLUMN * count);
    for (uint32_t number = 0; number < count && done; number++) done = take(self, number);
    return done;
}

static void end_parsing(struct parsing *self) {
    free(self->columns);
    release_rows(&self->held);
}

/* See that a buffer that was given has room for so many items, which is so many a row. */
static bool has_room(const struct parsing *self, int64_t given, int64_t a_row, int64_t more) {
    int64_t wanted;
    if (__builtin_mul_overflow(self->held.rows.count, a_row, &wanted) || given != wanted + more)
        return fail(PyExc_ValueError, "a column's memory has another size than its rows take");
    return true;
}

/* A column's memory for measuring: (values, splits, spans), each None where the plan needs none. */
static bool take_memory_to_measure(struct parsing *self, uint32_t number) {
    PyObject *values, *splits, *spans;
    const struct sr_plan *plan = &self->schema->plans[number];
    struct sr_column *column = &self->columns[number];
    int64_t value_bytes, split_count, span_count;
    if (!PyArg_ParseTuple(PyTuple_GetItem(self->memory, number), "OOO", &values, &splits, &spans)) return false;
    column->values = view_if_any(&self->held.views, values, 1, &value_bytes);
    column->splits = view_if_any(&self->held.views, splits, 8, &split_count);
    column->spans = view_if_any(&self->held.views, spans, 4, &span_count);
    if (PyErr_Occurred()) return false;
    const bool is_direct = sr_is_direct(plan);
    if (is_direct ? column->splits || column->spans || (plan->may_lack && !column->values) : !column->spans)
        return fail(PyExc_ValueError, "a column lacks memory, or has some that it does not need");
    if (column->values && (uintptr_t)column->values % 8) return fail(PyExc_ValueError, "a column's memory is not aligned");
    return (!column->values || has_room(self, value_bytes, plan->count * width_of(plan), 0)) &&
           (!column->splits || has_room(self, split_count, 1, 1)) && (!column->spans || has_room(self, span_count, 2, 0));
}

static PyObject *sizes_of(const struct parsing *self) {
    const Py_ssize_t count = self->schema->features + self->schema->lists;
    PyObject *sizes = PyTuple_New(count);
    for (Py_ssize_t k = 0; sizes && k < count; k++) {
        const struct sr_column *column = &self->columns[k];
        PyObject *size = Py_BuildValue("(LLL)", (long long)column->size.values, (long long)column->size.bytes,
                                       (long long)column->steps);
        if (!size || PyTuple_SetItem(sizes, k, size) < 0) Py_CLEAR(sizes);
    }
    return sizes;
}

static PyObject *result_of_measuring(const struct parsing *self, struct sr_finding finding) {
    if (finding.fault == SR_NO_MEMORY) return PyErr_NoMemory();
    PyObject *sizes = sizes_of(self);
    if (!sizes) return NULL;
    return Py_BuildValue("(iLLLN)", (int)finding.fault, (long long)finding.row, (long long)finding.plan,
                         (long long)finding.offset, sizes);
}

/* measure(schema, rows, memory): (fault, row, plan, offset, ((values, bytes, steps), ...)) */
static PyObject *py_measure(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *result = NULL;
    struct parsing self;
    if (begin_parsing(&self, args, take_memory_to_measure)) {
        struct sr_finding finding;
        Py_BEGIN_ALLOW_THREADS;
        finding = sr_measure(self.schema, &self.held.rows, self.columns);
        Py_END_ALLOW_THREADS;
        result = result_of_measuring(&self, finding);
    }
    end_parsing(&self);
    return result;
}

/* A column's memory for filling: None, or (values, ends of strings, ends of steps, spans). */
static bool take_memory_to_fill(struct parsing *self, uint32_t number) {
    PyObject *values, *ends, *step_ends, *spans, *memory = PyTuple_GetItem(self->memory, number);
    struct sr_column *column = &self->columns[number];
    const uintptr_t width = (uintptr_t)width_of(&self->schema->plans[number]);
    int64_t value_bytes, end_count, span_count;
    if (memory == Py_None) return true;
    if (!PyArg_ParseTuple(memory, "OOOO", &values, &ends, &step_ends, &spans)) return false;
    column->sink.values = view_if_any(&self->held.views, values, 1, &value_bytes);
    column->sink.ends = view_if_any(&self->held.views, ends, 8, &end_count);
    column->step_ends = view_if_any(&self->held.views, step_ends, 8, &column->steps);
    column->spans = view_if_any(&self->held.views, spans, 4, &span_count);
    if (PyErr_Occurred()) return false;
    if (!column->spans || ((uintptr_t)column->sink.values | (uintptr_t)value_bytes) % width)
        return fail(PyExc_ValueError, "a column lacks memory, or it is not aligned");
    column->sink.values_end = column->sink.values + value_bytes;
    column->sink.ends_end = column->sink.ends ? column->sink.ends + end_count : NULL;
    return has_room(self, span_count, 2, 0);
}

/* fill(schema, rows, memory): whether the rows were still those that were measured */
static PyObject *py_fill(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *result = NULL;
    struct parsing self;
    if (begin_parsing(&self, args, take_memory_to_fill)) {
        bool filled;
        Py_BEGIN_ALLOW_THREADS;
        filled = sr_fill(self.schema, &self.held.rows, self.columns);
        Py_END_ALLOW_THREADS;
        result = PyBool_FromLong(filled);
    }
    end_parsing(&self);
    return result;
}

static PyMethodDef functions[] = {
    {"crc32c", py_crc32c, METH_VARARGS, NULL},
    {"scan", py_scan, METH_VARARGS, NULL},
    {"frame", py_frame, METH_VARARGS, NULL},
    {"corrupt_row", py_corrupt_row, METH_VARARGS, NULL},
    {"gather", py_gather, METH_VARARGS, NULL},
    {"unfilter", py_unfilter, METH_VARARGS, NULL},
    {"schema", py_schema, METH_VARARGS, NULL},
    {"measure", py_measure, METH_VARARGS, NULL},
    {"fill", py_fill, METH_VARARGS, NULL},
    {"encode", py_encode, METH_VARARGS, NULL},
    {"message", py_message, METH_VARARGS, NULL},
    {"join", py_join, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static pthread_once_t ways = PTHREAD_ONCE_INIT;

static void choose_ways(void) {
    sr_crc32c_init();
    sr_packed_init();
}

/* Before any call, since these write what all calls read without a lock; and once for the process,
   though each interpreter of it prepares a module of its own. */
static int prepare(PyObject *module) {
    (void)module;
    return pthread_once(&ways, choose_ways) ? (fail(PyExc_RuntimeError, "pthread_once failed"), -1) : 0;
}

/* There is no state but what is written above, and no object outlives the call that made it but its
   result: so interpreters need no common lock, and threads none at all.

   Headers for the limited API of 3.11 do not name the slot of 3.12, and 3.11 refuses it. */
enum { MULTIPLE_INTERPRETERS = 3, VERSION_WITH_IT = 0x030c0000 };
#define EACH_ITS_LOCK ((void *)2)

static PyModuleDef_Slot slots_of_311[] = {
    {Py_mod_exec, prepare},
    {0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, prepare},
    {MULTIPLE_INTERPRETERS, EACH_ITS_LOCK},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition_for_311 = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, functions, slots_of_311, NULL, NULL, NULL};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, functions, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    return PyModuleDef_Init(Py_Version < VERSION_WITH_IT ? &definition_for_311 : &definition);
}
