/*
 * dlpack.c - the bytes of a hold as a DLPack tensor: one dimension, uint8, on the CPU.
 *
 * Layouts: dlpack.h 1.0, github.com/dmlc/dlpack. DLPack before 1.0 has no read-only flag, so a consumer that asks for
 * the old form gets its own copy or an error. The deleters may run in any thread, without the GIL.
 */
#include "ring.h"

#include <stdlib.h>
#include <string.h>

struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t type_code, type_bits;
    uint16_t type_lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};
struct dl_managed { /* before 1.0 */
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
};
struct dl_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct dl_versioned *self);
    uint64_t flags;
    struct dl_tensor tensor;
};
_Static_assert(sizeof(struct dl_tensor) == 48, "DLTensor of dlpack.h on 64 bits");
_Static_assert(offsetof(struct dl_versioned, tensor) == 32, "DLManagedTensorVersioned of dlpack.h on 64 bits");
_Static_assert(sizeof(struct dl_managed) == 64, "DLManagedTensor of dlpack.h on 64 bits");

#define DL_CPU         1
#define DL_UINT        1
#define DL_READ_ONLY   1u
#define DL_COPIED      2u
#define NAME_OLD       "dltensor"
#define NAME_VERSIONED "dltensor_versioned"
#define COPY_HINT      "open the data set with writable=True, or use .copy()"

struct export
{ /* the context of both forms */
    union {
        struct dl_managed old;
        struct dl_versioned versioned;
    } as;
    int64_t shape, stride;
    void *owner; /* of the bytes */
    void (*drop)(void *owner);
};

static void export_free(struct export *export)
{
    export->drop(export->owner);
    free(export);
}

static void delete_old(struct dl_managed *self)
{
    export_free(self->context);
}

static void delete_versioned(struct dl_versioned *self)
{
    export_free(self->context);
}

/* The capsule still has its first name: no consumer took the tensor. */
static void capsule_dropped(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, NAME_VERSIONED))
        delete_versioned(PyCapsule_GetPointer(capsule, NAME_VERSIONED));
    else if (PyCapsule_IsValid(capsule, NAME_OLD))
        delete_old(PyCapsule_GetPointer(capsule, NAME_OLD));
}

/* Takes over owner. */
static PyObject *export_new(void *data, uint64_t length, void *owner, void (*drop)(void *owner), bool versioned,
                            uint64_t flags)
{
    struct export *export = calloc(1, sizeof(*export));
    if (!export) {
        drop(owner);
        return PyErr_NoMemory();
    }
    export->owner = owner;
    export->drop = drop;
    export->shape = (int64_t)length;
    export->stride = 1;
    struct dl_tensor tensor = {.data = data,
                               .device_type = DL_CPU,
                               .ndim = 1,
                               .type_code = DL_UINT,
                               .type_bits = 8,
                               .type_lanes = 1,
                               .shape = &export->shape,
                               .strides = &export->stride};
    if (versioned)
        export->as.versioned = (struct dl_versioned){
            .major = 1, .minor = 0, .context = export, .deleter = delete_versioned, .flags = flags, .tensor = tensor};
    else
        export->as.old = (struct dl_managed){.tensor = tensor, .context = export, .deleter = delete_old};
    PyObject *capsule = PyCapsule_New(&export->as, versioned ? NAME_VERSIONED : NAME_OLD, capsule_dropped);
    if (!capsule)
        export_free(export);
    return capsule;
}

PyObject *ring_dlpack_writable(void *data, uint64_t length, void *owner, void (*drop)(void *owner))
{
    return export_new(data, length, owner, drop, false, 0);
}

static void drop_hold(void *hold)
{
    ring_hold_unref(hold);
}

/* Takes over hold. */
static PyObject *export_hold(struct ring_hold *hold, bool versioned, uint64_t flags)
{
    return hold ? export_new(hold->data, hold->length, hold, drop_hold, versioned, flags) : PyErr_NoMemory();
}

static int check_device(PyObject *device)
{
    if (device == Py_None)
        return 0;
    int type, id;
    if (!PyArg_ParseTuple(device, "ii;dl_device is a pair of integers", &type, &id))
        return -1;
    if (type == DL_CPU)
        return 0;
    PyErr_SetString(PyExc_BufferError, "the bytes of a Lease are in the CPU's memory");
    return -1;
}

PyObject *ring_dlpack(struct ring_hold *hold, bool read_only, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
    unsigned major = 0, minor = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO:__dlpack__", names, &stream, &version, &device, &copy))
        return NULL;
    if (version != Py_None && (!PyTuple_Check(version) || !PyArg_ParseTuple(version, "II", &major, &minor))) {
        PyErr_SetString(PyExc_TypeError, "max_version is a pair of integers");
        return NULL;
    }
    if (check_device(device))
        return NULL;
    if (stream != Py_None) {
        PyErr_SetString(PyExc_BufferError, "the bytes of a Lease are in the CPU's memory: stream must be None");
        return NULL;
    }
    int wants_copy = copy == Py_None ? 0 : PyObject_IsTrue(copy);
    if (wants_copy < 0)
        return NULL;
    if (wants_copy)
        return export_hold(ring_hold_copy(hold), major >= 1, DL_COPIED);
    if (read_only && major < 1) {
        PyErr_SetString(PyExc_BufferError, "the bytes of a Lease are read-only, and DLPack before version 1.0 cannot "
                                           "mark that: " COPY_HINT);
        return NULL;
    }
    return export_hold(ring_hold_ref(hold), major >= 1, read_only ? DL_READ_ONLY : 0);
}
