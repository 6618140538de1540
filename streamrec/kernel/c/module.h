/* What the files of the glue between Python and the kernel share: how buffers are held. */
#ifndef SR_MODULE_H
#define SR_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

/* Buffers that are held until the call is over. */
struct views {
    Py_buffer *all;
    Py_ssize_t count, room;
};

static inline bool views_init(struct views *views, Py_ssize_t room) {
    *views = (struct views){PyMem_Malloc((size_t)(room > 0 ? room : 1) * sizeof(Py_buffer)), 0, room};
    if (!views->all) PyErr_NoMemory();
    return views->all != NULL;
}

static inline void views_release(struct views *views) {
    while (views->count) PyBuffer_Release(&views->all[--views->count]);
    PyMem_Free(views->all);
}

enum access { READ, WRITE };

/* An object's memory as items of a size, and how many of them there are. Does nothing once there is
   an error, so that several calls need one look at it. */
static inline void *view(struct views *views, PyObject *object, Py_ssize_t item, enum access access, int64_t *count) {
    *count = 0;
    if (PyErr_Occurred()) return NULL;
    if (views->count == views->room) {
        PyErr_SetString(PyExc_SystemError, "more buffers than were counted");
        return NULL;
    }
    Py_buffer *buffer = &views->all[views->count];
    if (PyObject_GetBuffer(object, buffer, access == WRITE ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) return NULL;
    /* Counted before it is checked, so that a refused one is released, too. */
    views->count++;
    if (buffer->len % item || (uintptr_t)buffer->buf % (uintptr_t)item) {
        PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes holds no aligned items of %zd bytes", buffer->len, item);
        return NULL;
    }
    *count = buffer->len / item;
    return buffer->buf;
}

/* The same of memory that may be left out: None gives NULL. */
static inline void *view_if_any(struct views *views, PyObject *object, Py_ssize_t item, int64_t *count) {
    *count = 0;
    return object == Py_None ? NULL : view(views, object, item, WRITE, count);
}

static inline bool fail(PyObject *kind, const char *message) {
    PyErr_SetString(kind, message);
    return false;
}

#endif
