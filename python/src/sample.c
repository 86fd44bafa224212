/*
 * sample.c - the members of one sample of a tar shard: which suffix lies where in its bytes.
 */
#include "ring.h"

#include "base/error.h"
#include "shm/index/sample.h"

/* What each sample has beside its members (millrace/_sample.py). */
static bool is_of_sample(PyObject *suffix)
{
    return PyUnicode_CompareWithASCIIString(suffix, "__key__") == 0 ||
           PyUnicode_CompareWithASCIIString(suffix, "__url__") == 0;
}

/* Adds suffix: (offset, size). The suffix is lowercased; one that is there already is an error. */
static int add_member(PyObject *members, const struct mr_tar_member *member, size_t key_length)
{
    const char *suffix = member->name + key_length + 1;
    PyObject *given =
        PyUnicode_DecodeUTF8(suffix, (Py_ssize_t)(member->name_length - key_length - 1), "surrogateescape");
    PyObject *lower = given ? PyObject_CallMethod(given, "lower", NULL) : NULL;
    PyObject *place =
        lower ? Py_BuildValue("KK", (unsigned long long)member->data, (unsigned long long)member->size) : NULL;
    int rc = -1;
    Py_XDECREF(given);
    if (place) {
        rc = PyDict_Contains(members, lower);
        if (rc == 0 && is_of_sample(lower))
            rc = 1;
        if (rc == 1) {
            mr_error_set(MR_E_CORRUPT, "%.300s: its suffix is that of an earlier member of the sample", member->name);
            ring_raise();
            rc = -1;
        } else if (rc == 0) {
            rc = PyDict_SetItem(members, lower, place);
        }
    }
    Py_XDECREF(lower);
    Py_XDECREF(place);
    return rc;
}

/* All members of the range, which must be of one key. 0, or -1 with an exception. */
static int read_members(const unsigned char *bytes, uint64_t length, PyObject *members, PyObject **key)
{
    struct mr_tar tar;
    struct mr_tar_member member;
    char first[MR_TAR_NAME_MAX + 1];
    size_t first_length = 0;
    bool any = false;
    mr_tar_init(&tar, length);
    for (;;) {
        uint64_t at = tar.at < tar.size ? tar.at : tar.size;
        enum mr_tar_event event = mr_tar_next(&tar, bytes + at, (size_t)(tar.size - at), &member);
        if (event == MR_TAR_END)
            break;
        if (event != MR_TAR_MEMBER) { /* nothing more can come */
            ring_raise();
            return -1;
        }
        size_t key_length;
        if (!mr_sample_takes(&member, &key_length))
            continue;
        if (any && (key_length != first_length || memcmp(first, member.name, key_length) != 0)) {
            mr_error_set(MR_E_CORRUPT, "%.300s: it belongs to another sample", member.name);
            ring_raise();
            return -1;
        }
        memcpy(first, member.name, key_length);
        first_length = key_length;
        any = true;
        if (add_member(members, &member, key_length) != 0)
            return -1;
    }
    *key = PyUnicode_DecodeUTF8(first, (Py_ssize_t)first_length, "surrogateescape");
    return *key ? 0 : -1;
}

PyObject *ring_members(PyObject *module, PyObject *buffer)
{
    Py_buffer bytes;
    uint64_t length;
    struct ring_hold *hold = ring_lease_hold(PyModule_GetState(module), buffer, &length);
    if (!hold && (PyErr_Occurred() || PyObject_GetBuffer(buffer, &bytes, PyBUF_SIMPLE) != 0))
        return NULL;
    PyObject *key = NULL, *members = PyDict_New();
    const void *data = hold ? hold->data : bytes.buf;
    int rc = members ? read_members(data, hold ? length : (uint64_t)bytes.len, members, &key) : -1;
    if (hold)
        ring_hold_unref(hold);
    else
        PyBuffer_Release(&bytes);
    if (rc == 0)
        return Py_BuildValue("NN", key, members);
    Py_XDECREF(key);
    Py_XDECREF(members);
    return NULL;
}
