/* The glue of interleaving. It holds on to the GIL: there is less to do than waiting for it costs. */
#include "module.h"

#include <string.h>

#include "interleave.h"

/* Rows that are worth letting go of the GIL for, a quarter of a millisecond. */
enum { MANY_ROWS = 1 << 15 };

struct interleaving {
    struct views views;
    struct sr_run *runs;
    struct sr_lane *lanes;
    int64_t *places;
    Py_ssize_t run_count, lane_count;
    int64_t rows;
    struct sr_interleaved out;
};

static bool allocate(struct interleaving *self) {
    enum { ARRAYS_A_RUN = 5, OTHERS = 8 };
    if (self->run_count > (PY_SSIZE_T_MAX - OTHERS) / ARRAYS_A_RUN) return fail(PyExc_ValueError, "too many runs");
    if (!views_init(&self->views, ARRAYS_A_RUN * self->run_count + OTHERS)) return false;
    self->runs = PyMem_Calloc((size_t)self->run_count + 1, sizeof *self->runs);
    self->lanes = PyMem_Calloc((size_t)self->lane_count + 1, sizeof *self->lanes);
    return (self->runs && self->lanes) || fail(PyExc_MemoryError, "no memory for the runs' addresses");
}

static void end(struct interleaving *self) {
    PyMem_Free(self->runs);
    PyMem_Free(self->lanes);
    PyMem_Free(self->places);
    if (self->views.all) views_release(&self->views);
}

/* An array of signed integers of a size. */
static void *integers(struct interleaving *self, PyObject *object, Py_ssize_t size, enum access access, int64_t *count) {
    void *items = view_as(&self->views, object, size, PyBUF_FORMAT | (access == WRITE ? PyBUF_WRITABLE : 0), count);
    if (PyErr_Occurred()) return NULL;
    const Py_buffer *buffer = &self->views.all[self->views.count - 1];
    const char *format = buffer->format ? buffer->format : "B";
    if (buffer->itemsize == size && format[0] && strchr("ilq", format[0]) && !format[1]) return items;
    PyErr_Format(PyExc_ValueError, "an array of format %s does not hold integers of %zd bytes", format, size);
    return NULL;
}

/* One run: (lane, first row, the row behind the last, epoch, first buffer, and the rows' arrays). */
static bool take_run(struct interleaving *self, PyObject *object, struct sr_run *run, Py_ssize_t *lane) {
    PyObject *index, *offsets, *lengths, *shards, *ordinals;
    long long first, last, epoch;
    int64_t counts[5] = {0};
    if (!PyArg_ParseTuple(object, "nLLLiOOOOO", lane, &first, &last, &epoch, &run->first_buffer, &index, &offsets, &lengths,
                          &shards, &ordinals))
        return false;
    run->buffer_index = integers(self, index, sizeof *run->buffer_index, READ, &counts[0]);
    run->offsets = integers(self, offsets, sizeof *run->offsets, READ, &counts[1]);
    run->lengths = integers(self, lengths, sizeof *run->lengths, READ, &counts[2]);
    run->shards = integers(self, shards, sizeof *run->shards, READ, &counts[3]);
    run->ordinals = integers(self, ordinals, sizeof *run->ordinals, READ, &counts[4]);
    if (PyErr_Occurred()) return false;
    for (int k = 1; k < 5; k++)
        if (counts[k] != counts[0]) return fail(PyExc_ValueError, "the arrays of a run have different lengths");
    if (first < 0 || first > last || last > counts[0]) return fail(PyExc_ValueError, "a run lies outside of its rows");
    run->count = last - first;
    run->epoch = epoch;
    if (run->count) { /* else there may be no addresses */
        run->buffer_index += first;
        run->offsets += first;
        run->lengths += first;
        run->shards += first;
        run->ordinals += first;
    }
    return true;
}

static bool take_runs(struct interleaving *self, PyObject *runs) {
    Py_ssize_t lane = 0, before = 0;
    for (Py_ssize_t k = 0; k < self->run_count; k++, before = lane) {
        struct sr_run *run = &self->runs[k];
        if (!take_run(self, PyTuple_GetItem(runs, k), run, &lane)) return false;
        if (lane < before || lane >= self->lane_count) return fail(PyExc_ValueError, "the runs are not by lane");
        if (!self->lanes[lane].rows) self->lanes[lane].begin = self->rows;
        self->lanes[lane].rows += run->count;
        if (__builtin_add_overflow(self->rows, run->count, &self->rows)) return fail(PyExc_ValueError, "too many rows");
    }
    return true;
}

/* The arrays that are written: those of the rows, then epochs and ends. */
static bool take_memory(struct interleaving *self, PyObject *memory) {
    PyObject *index, *offsets, *lengths, *shards, *ordinals, *epochs, *ends;
    struct sr_interleaved *out = &self->out;
    int64_t counts[7] = {0};
    if (!PyArg_ParseTuple(memory, "OOOOOOO", &index, &offsets, &lengths, &shards, &ordinals, &epochs, &ends)) return false;
    out->buffer_index = integers(self, index, sizeof *out->buffer_index, WRITE, &counts[0]);
    out->offsets = integers(self, offsets, sizeof *out->offsets, WRITE, &counts[1]);
    out->lengths = integers(self, lengths, sizeof *out->lengths, WRITE, &counts[2]);
    out->shards = integers(self, shards, sizeof *out->shards, WRITE, &counts[3]);
    out->ordinals = integers(self, ordinals, sizeof *out->ordinals, WRITE, &counts[4]);
    out->epochs = integers(self, epochs, sizeof *out->epochs, WRITE, &counts[5]);
    out->ends = integers(self, ends, sizeof *out->ends, WRITE, &counts[6]);
    if (PyErr_Occurred()) return false;
    for (int k = 0; k < 7; k++)
        if (counts[k] != self->rows) return fail(PyExc_ValueError, "the runs take another number of rows");
    return true;
}

static bool find_places(struct interleaving *self, PyObject *object) {
    int64_t count;
    const int64_t *keys = integers(self, object, sizeof *keys, READ, &count);
    if (PyErr_Occurred()) return false;
    if (count != self->rows) return fail(PyExc_ValueError, "there is not a key for each row");
    if ((uint64_t)count > PY_SSIZE_T_MAX / sizeof *self->places) return fail(PyExc_ValueError, "too many rows");
    self->places = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *self->places);
    if (!self->places) return fail(PyExc_MemoryError, "no memory for the rows' places");
    return sr_places(keys, count, self->lanes, self->lane_count, self->places) ||
           fail(PyExc_ValueError, "the keys do not name each lane as often as it has rows");
}

PyObject *py_interleave(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *runs, *keys, *memory;
    struct interleaving self = {0};
    if (!PyArg_ParseTuple(args, "nO!OO!", &self.lane_count, &PyTuple_Type, &runs, &keys, &PyTuple_Type, &memory)) return NULL;
    if (self.lane_count < 0 || self.lane_count > 1 << 24) return fail(PyExc_ValueError, "too many lanes"), NULL;
    self.run_count = PyTuple_Size(runs);
    if (allocate(&self) && take_runs(&self, runs) && take_memory(&self, memory) && find_places(&self, keys)) {
        if (self.rows < MANY_ROWS) {
            sr_interleave(self.runs, self.run_count, self.places, &self.out);
        } else {
            Py_BEGIN_ALLOW_THREADS;
            sr_interleave(self.runs, self.run_count, self.places, &self.out);
            Py_END_ALLOW_THREADS;
        }
    }
    end(&self);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
