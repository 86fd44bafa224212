/* state.c - what all types need: the module's state, the way from an mr_error to an exception, who is in an object. */
#include "ring.h"

#include "base/error.h"

struct ring_state *ring_state_of(PyTypeObject *type)
{
    return PyType_GetModuleState(type);
}

PyObject *ring_raise(void)
{
    unsigned code = mr_error_code();
    /* The text may hold bytes of a server or a file name: never let them hide the error. */
    PyObject *text = PyUnicode_DecodeUTF8(mr_error_text(), (Py_ssize_t)strlen(mr_error_text()), "backslashreplace");
    PyObject *errors = text ? PyImport_ImportModule("millrace._errors") : NULL;
    PyObject *error = errors ? PyObject_CallMethod(errors, "from_code", "IO", code, text) : NULL;
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_XDECREF(errors);
    Py_XDECREF(text);
    return NULL;
}

void ring_warn(const char *line)
{
    if (line[0] == '\0')
        return;
    PyObject *type_of_error, *value, *traceback;
    PyErr_Fetch(&type_of_error, &value, &traceback);
    PyObject *text = PyUnicode_DecodeUTF8(line, (Py_ssize_t)strlen(line), "backslashreplace");
    PyObject *errors = text ? PyImport_ImportModule("millrace._errors") : NULL;
    PyObject *done = errors ? PyObject_CallMethod(errors, "warn", "O", text) : NULL;
    if (!done)
        PyErr_Clear(); /* the interpreter ends, or a handler of the log fails: not the waiter's business */
    Py_XDECREF(done);
    Py_XDECREF(errors);
    Py_XDECREF(text);
    PyErr_Restore(type_of_error, value, traceback);
}

PyObject *ring_no_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    PyErr_Format(PyExc_TypeError, "%s is not made by calling it", type->tp_name);
    return NULL;
}

#if PY_VERSION_HEX < 0x030d0000
#define Py_IsFinalizing _Py_IsFinalizing
#endif

bool ring_lock(PyThread_type_lock lock)
{
    if (PyThread_acquire_lock(lock, NOWAIT_LOCK))
        return true;
    if (Py_IsFinalizing())
        return false;
    Py_BEGIN_ALLOW_THREADS
        PyThread_acquire_lock(lock, WAIT_LOCK);
    Py_END_ALLOW_THREADS
    return true;
}

int ring_lock_or_signal(PyThread_type_lock lock, unsigned slice_ms)
{
    PyLockStatus got = PyThread_acquire_lock_timed(lock, 0, 0);
    if (got == PY_LOCK_ACQUIRED)
        return 1;
    if (Py_IsFinalizing())
        return ring_refuse_ending();
    Py_BEGIN_ALLOW_THREADS
        got = PyThread_acquire_lock_timed(lock, slice_ms * INT64_C(1000), 0);
    Py_END_ALLOW_THREADS
    if (got == PY_LOCK_ACQUIRED)
        return 1;
    return PyErr_CheckSignals();
}

int ring_refuse_ending(void)
{
    PyErr_SetString(PyExc_RuntimeError,
                    "the interpreter is ending, and a thread of it was stopped in the middle of this");
    return -1;
}

int ring_refuse_reentry(unsigned long user, const char *what)
{
    if (user != PyThread_get_thread_ident())
        return 0;
    PyErr_Format(PyExc_RuntimeError,
                 "this %s is in use: a signal handler or a finaliser cannot use it in the middle of a call of its own",
                 what);
    return -1;
}

int ring_enter(unsigned long *user, const char *what)
{
    if (*user == 0) {
        *user = PyThread_get_thread_ident();
        return 0;
    }
    if (!ring_refuse_reentry(*user, what))
        PyErr_Format(PyExc_RuntimeError, "this %s is in use by another thread", what);
    return -1;
}

void ring_leave(unsigned long *user)
{
    *user = 0;
}

int ring_uint64(PyObject *object, uint64_t *value)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(object);
    if (number == (unsigned long long)-1 && PyErr_Occurred())
        return -1;
    *value = number;
    return 0;
}

int ring_uint32(PyObject *object, uint32_t *value)
{
    uint64_t number;
    if (ring_uint64(object, &number))
        return -1;
    if (number > UINT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "%llu does not fit 32 bits", (unsigned long long)number);
        return -1;
    }
    *value = (uint32_t)number;
    return 0;
}

int ring_name_bytes(PyObject *text, void *out)
{
    PyObject **bytes = out;
    if (!text) {
        Py_CLEAR(*bytes);
        return 1;
    }
    if (!PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "a name is a str, not %s", Py_TYPE(text)->tp_name);
        return 0;
    }
    PyObject *made = PyUnicode_AsEncodedString(text, "utf-8", "surrogateescape");
    if (!made)
        return 0;
    if (strlen(PyBytes_AS_STRING(made)) != (size_t)PyBytes_GET_SIZE(made)) {
        PyErr_SetString(PyExc_ValueError, "embedded null character");
        Py_DECREF(made);
        return 0;
    }
    *bytes = made;
    return Py_CLEANUP_SUPPORTED;
}
