/* module.c - millrace._ring: the module with its types and functions. */
#include "ring.h"

static PyTypeObject *ring_add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type && PyModule_AddType(module, type) < 0) {
        Py_DECREF(type);
        return NULL;
    }
    return type;
}

static int ring_exec(PyObject *module)
{
    struct ring_state *state = PyModule_GetState(module);
    if (!(state->client = ring_add_type(module, &ring_client_spec)) ||
        !(state->opened = ring_add_type(module, &ring_opened_spec)) ||
        !(state->index = ring_add_type(module, &ring_index_spec)) ||
        !(state->plan = ring_add_type(module, &ring_plan_spec)) ||
        !(state->lane = ring_add_type(module, &ring_lane_spec)) ||
        !(state->lease = ring_add_type(module, &ring_lease_spec)) ||
        !(state->writer = ring_add_type(module, &ring_writer_spec)) ||
        !(state->range = ring_add_type(module, &ring_range_spec)) ||
        !(state->batch = ring_add_type(module, &ring_batch_spec)) ||
        !(state->batch_arena = ring_add_type(module, &ring_batch_arena_spec)) ||
        !(state->meter = ring_add_type(module, &ring_meter_spec)) ||
        !(state->failure = PyStructSequence_NewType(&ring_failure_desc)) ||
        PyModule_AddType(module, state->failure) < 0)
        return -1;
    return 0;
}

static int ring_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct ring_state *state = PyModule_GetState(module);
    Py_VISIT(state->client);
    Py_VISIT(state->opened);
    Py_VISIT(state->index);
    Py_VISIT(state->plan);
    Py_VISIT(state->lane);
    Py_VISIT(state->lease);
    Py_VISIT(state->failure);
    Py_VISIT(state->writer);
    Py_VISIT(state->range);
    Py_VISIT(state->batch);
    Py_VISIT(state->batch_arena);
    Py_VISIT(state->meter);
    return 0;
}

static int ring_clear(PyObject *module)
{
    struct ring_state *state = PyModule_GetState(module);
    Py_CLEAR(state->client);
    Py_CLEAR(state->opened);
    Py_CLEAR(state->index);
    Py_CLEAR(state->plan);
    Py_CLEAR(state->lane);
    Py_CLEAR(state->lease);
    Py_CLEAR(state->failure);
    Py_CLEAR(state->writer);
    Py_CLEAR(state->range);
    Py_CLEAR(state->batch);
    Py_CLEAR(state->batch_arena);
    Py_CLEAR(state->meter);
    return 0;
}

static PyMethodDef ring_methods[] = {
    {"lease_of", ring_lease_of, METH_VARARGS,
     "lease_of(buffer, state) -> Lease: over a copy of these bytes, as the one whose _state() this is."},
    {"members", ring_members, METH_O,
     "members(buffer) -> (key, {suffix: (offset, size)}): where the members of a sample of a tar shard lie."},
    {"tracing", ring_tracing, METH_NOARGS, "tracing() -> bool: this run is being traced (millrace trace)."},
    {"trace", (PyCFunction)(void (*)(void))ring_trace, METH_VARARGS | METH_KEYWORDS,
     "trace(kind, began_ns, object=0, bytes=0, text=None): a span of this thread ends now. kind: transform, "
     "device or save. Nothing while no trace is taken."},
    {"trace_made", ring_trace_made, METH_O, "trace_made(times): the spans of a batch that this thread has made."},
    {"delay_ns", ring_delay_ns, METH_NOARGS,
     "delay_ns() -> int: how long this thread could have run and no core was free; 0 in others than the first."},
    {"memory_limit_bytes", ring_memory_limit, METH_NOARGS,
     "memory_limit_bytes() -> int: what this machine has, or this process's cgroup may use."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot ring_slots[] = {{Py_mod_exec, ring_exec}, {0, NULL}};

static struct PyModuleDef ring_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "millrace._ring",
    .m_doc = "The shared-memory ring, bound for Python. Use the classes of millrace; this module may change.",
    .m_size = sizeof(struct ring_state),
    .m_methods = ring_methods,
    .m_slots = ring_slots,
    .m_traverse = ring_traverse,
    .m_clear = ring_clear,
};

PyMODINIT_FUNC PyInit__ring(void);
PyMODINIT_FUNC PyInit__ring(void)
{
#ifdef Py_GIL_DISABLED /* ring_enter, and every method that reads its object before it locks */
    (void)ring_module;
    PyErr_SetString(PyExc_ImportError, "millrace does not work with the free-threaded build of CPython: use the "
                                       "ordinary build of the same version");
    return NULL;
#else
    return PyModuleDef_Init(&ring_module);
#endif
}
