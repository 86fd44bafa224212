/*
 * trace.c - spans of this process for `millrace trace` (shm/trace/): the module's functions. Nothing is done while no
 * process traces; none of them waits.
 */
#include "ring.h"

#include "base/clock.h"
#include "shm/meter/meter.h"
#include "shm/trace/trace.h"

PyObject *ring_tracing(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyBool_FromLong(mr_trace_is_on());
}

/* kind -> enum mr_span, of those that Python measures. */
static enum mr_span span_of(const char *kind)
{
    static const struct {
        const char *name;
        enum mr_span span;
    } known[] = {{"transform", MR_SPAN_TRANSFORM}, {"device", MR_SPAN_DEVICE}, {"save", MR_SPAN_SAVE}};

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, kind) == 0)
            return known[i].span;
    return MR_SPAN_NONE;
}

PyObject *ring_trace(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kind", "began_ns", "object", "bytes", "text", NULL};
    const char *kind;
    PyObject *text = NULL;
    long long began_ns;
    unsigned long long object = 0, bytes = 0;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sL|KKO&:trace", names, &kind, &began_ns, &object, &bytes,
                                     ring_name_bytes, &text))
        return NULL;
    enum mr_span span = span_of(kind);
    if (span == MR_SPAN_NONE)
        PyErr_Format(PyExc_ValueError, "there is no kind of span %s", kind);
    else
        mr_trace_emit(
            &(struct mr_trace_record){
                .kind = span, .begin_ns = began_ns, .end_ns = mr_clock_mono_ns(), .object = object, .bytes = bytes},
            text ? PyBytes_AS_STRING(text) : NULL);
    Py_XDECREF(text);
    return span == MR_SPAN_NONE ? NULL : Py_NewRef(Py_None);
}

PyObject *ring_trace_made(PyObject *module, PyObject *times)
{
    struct mr_meter_times made = {0};
    (void)module;
    if (!PyTuple_Check(times)) {
        PyErr_SetString(PyExc_TypeError, "the times of a batch are a millrace._timing.Times");
        return NULL;
    }
    if (!ring_meter_times(times, &made))
        return NULL;
    mr_meter_trace_made(&made);
    Py_RETURN_NONE;
}
