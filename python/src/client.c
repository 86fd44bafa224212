/*
 * client.c - Client: this process's connection to the supervisor, as the package has it. What its lanes, readers and
 * writers do with it is in connection.c.
 */
#include "client_impl.h"

#include <stdlib.h>

#include "base/error.h"
#include "shm/memory/fork_mark.h"

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"path", "role", "timeout_ms", NULL};
    PyObject *path = NULL;
    const char *role = "job";
    unsigned timeout_ms = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|sI:Client", names, PyUnicode_FSConverter, &path, &role,
                                     &timeout_ms))
        return NULL;
    struct mr_client *client = NULL;
    uint64_t mark = mr_fork_mark();
    Py_BEGIN_ALLOW_THREADS
        if (mark)
            client = mr_client_connect(PyBytes_AS_STRING(path), role, timeout_ms);
    Py_END_ALLOW_THREADS
    Py_DECREF(path);
    if (!client)
        return ring_raise();
    Client *self = PyObject_New(Client, type);
    if (!self) {
        mr_client_destroy(client);
        return NULL;
    }
    self->client = client;
    self->views = NULL;
    self->mark = mark;
    self->lanes = self->writers = 0;
    self->unused = NULL;
    self->lock = PyThread_allocate_lock();
    if (!self->lock) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

/* The arenas that are mapped now, after a call that may have let older ones go. */
static void follow_views(Client *self, struct mr_views *views)
{
    if (views == self->views)
        return;
    struct mr_views *old = self->views;
    ring_fault_swap_views(old, views);
    self->views = views ? mr_views_ref(views) : NULL;
    mr_views_unref(old);
}

static void client_drop(Client *self)
{
    follow_views(self, NULL);
    mr_client_destroy(self->client);
    self->client = NULL;
}

/* In a forked child: what a thread of the parent was in the middle of is left as it is. */
static void leave_behind(Client *self)
{
    if (PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) {
        client_drop(self);
        PyThread_release_lock(self->lock);
    }
    self->client = NULL;
}

/* In a forked child the parent's connection is left alone: closing it would end the parent's. */
static void client_dealloc(Client *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->lock && ring_client_is_foreign(self))
        leave_behind(self);
    else
        client_drop(self);
    if (self->lock)
        PyThread_free_lock(self->lock);
    for (struct ring_unused *each; (each = self->unused);) {
        self->unused = each->next;
        free(each);
    }
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *client_close(Client *self, PyObject *ignored)
{
    (void)ignored;
    if (ring_client_is_foreign(self)) {
        leave_behind(self);
        Py_RETURN_NONE;
    }
    if (!ring_lock(self->lock))
        Py_RETURN_NONE;
    bool used = self->lanes + self->writers > 0;
    if (!used)
        client_drop(self);
    ring_client_end(self);
    if (!used)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_RuntimeError, "lanes or checkpoint writers of this connection are open: close them first");
    return NULL;
}

static PyObject *client_check(Client *self, PyObject *ignored)
{
    (void)ignored;
    if (ring_client_begin(self))
        return NULL;
    int rc = mr_client_check(self->client);
    const char *warning = mr_client_warning(self->client);
    ring_client_end(self);
    if (rc)
        return ring_raise();
    ring_warn(warning);
    Py_RETURN_NONE;
}

/* ---- data sets ---- */

/* A malloc'ed array of the names of a tuple of str; the bytes lie in *kept, a new tuple, which must outlive it. */
static const char **texts_of(PyObject *tuple, PyObject **kept)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    const char **texts = calloc((size_t)count + 1, sizeof(*texts));
    if (!texts) {
        PyErr_NoMemory();
        return NULL;
    }
    *kept = PyTuple_New(count);
    for (Py_ssize_t i = 0; *kept && i < count; i++) {
        PyObject *bytes = NULL;
        if (!ring_name_bytes(PyTuple_GET_ITEM(tuple, i), &bytes)) {
            Py_CLEAR(*kept);
            break;
        }
        PyTuple_SET_ITEM(*kept, i, bytes);
        texts[i] = PyBytes_AS_STRING(bytes);
    }
    if (*kept)
        return texts;
    free(texts);
    return NULL;
}

/* The Opened that a data set goes into, which may be NULL. */
static int begin_opening(Client *self, PyObject *into)
{
    if (into && ring_opened_check(ring_state_of(Py_TYPE(self)), (PyObject *)self, into))
        return -1;
    return ring_client_begin(self);
}

/* None: there is no room, but will be. */
static PyObject *open_dataset(Client *self, const struct mr_to_open *what, PyObject *into)
{
    struct mr_opened opened = {0};
    if (begin_opening(self, into))
        return NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS
        rc = mr_client_open_dataset(self->client, what, &opened);
    Py_END_ALLOW_THREADS
    ring_client_end(self);
    if (!rc && into)
        ring_opened_put(into, opened.dataset);
    if (rc && mr_error_code() == MR_E_BUSY)
        Py_RETURN_NONE;
    return rc ? ring_raise() : Py_BuildValue("KII", (unsigned long long)opened.dataset, opened.tail, opened.on_error);
}

static PyObject *client_open_dataset(Client *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "uris", "names_fd", "format", "nth", "dataset", "into", NULL};
    const char *name = NULL, *format = "";
    PyObject *uris = NULL, *known = NULL, *into = NULL;
    int names_fd = -1;
    unsigned long long nth = 0;
    uint64_t id = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$zO!isKOO:open_dataset", names, &name, &PyTuple_Type, &uris,
                                     &names_fd, &format, &nth, &known, &into) ||
        (known && ring_uint64(known, &id)))
        return NULL;
    const char **texts = NULL;
    PyObject *kept = NULL;
    if (uris && !(texts = texts_of(uris, &kept)))
        return NULL;
    struct mr_to_open what = {.known = known ? &id : NULL,
                              .names_fd = names_fd,
                              .uris = texts,
                              .uri_count = uris ? (size_t)PyTuple_GET_SIZE(uris) : 0,
                              .name = name,
                              .format = nth > 0 ? "objects" : format,
                              .nth = nth};
    PyObject *opened = open_dataset(self, &what, into);
    free(texts);
    Py_XDECREF(kept);
    return opened;
}

static PyObject *client_open_listing(Client *self, PyObject *args)
{
    unsigned long long like;
    const char *digest;
    PyObject *into = NULL;
    if (!PyArg_ParseTuple(args, "Ks|O:open_listing", &like, &digest, &into))
        return NULL;
    return open_dataset(self, &(struct mr_to_open){.like = like, .digest = digest}, into);
}

static PyObject *client_open_ranged(Client *self, PyObject *args)
{
    int names_fd;
    unsigned long long block_bytes;
    PyObject *into = NULL;
    if (!PyArg_ParseTuple(args, "iK|O:open_ranged", &names_fd, &block_bytes, &into) || begin_opening(self, into))
        return NULL;
    struct mr_opened opened = {0};
    int rc;
    Py_BEGIN_ALLOW_THREADS
        rc = mr_client_open_ranged(self->client, names_fd, block_bytes, &opened);
    Py_END_ALLOW_THREADS
    ring_client_end(self);
    if (!rc && into)
        ring_opened_put(into, opened.dataset);
    if (rc && mr_error_code() == MR_E_BUSY)
        Py_RETURN_NONE;
    return rc ? ring_raise() : PyLong_FromUnsignedLongLong(opened.dataset);
}

static PyObject *client_block_bytes(Client *self, PyObject *arg)
{
    uint64_t dataset;
    if (ring_uint64(arg, &dataset) || ring_client_begin(self))
        return NULL;
    uint64_t block_bytes = mr_client_dataset_block(self->client, dataset);
    ring_client_end(self);
    return PyLong_FromUnsignedLongLong(block_bytes);
}

static PyObject *client_close_dataset(Client *self, PyObject *arg)
{
    uint64_t dataset;
    if (ring_uint64(arg, &dataset) || ring_client_begin(self))
        return NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS
        rc = mr_client_close_dataset(self->client, dataset);
    Py_END_ALLOW_THREADS
    ring_client_end(self);
    if (rc)
        return ring_raise();
    Py_RETURN_NONE;
}

/* One that had failed is refused, since its number was given to another one. */
static PyObject *client_close_unused(Client *self, PyObject *ignored)
{
    (void)ignored;
    while (self->unused) {
        if (ring_client_begin(self))
            return NULL;
        struct ring_unused *each =
            self->unused; /* another thread may have been here while this one waited for its turn */
        int rc = 0;
        if (each) {
            self->unused = each->next;
            Py_BEGIN_ALLOW_THREADS
                rc = mr_client_close_dataset(self->client, each->dataset);
            Py_END_ALLOW_THREADS
            free(each);
        }
        ring_client_end(self);
        if (rc && mr_error_code() != MR_E_USAGE)
            return ring_raise();
    }
    Py_RETURN_NONE;
}

static PyObject *client_range_reader(Client *self, PyObject *args)
{
    PyObject *index_object;
    unsigned long long dataset, object;
    PyObject *label = NULL, *reader = NULL;
    int exact = 0;
    if (!PyArg_ParseTuple(args, "KOKO&|p:range_reader", &dataset, &index_object, &object, ring_name_bytes, &label,
                          &exact))
        return NULL;
    struct ring_state *state = ring_state_of(Py_TYPE(self));
    struct ring_index *index = ring_index_of(state, index_object);
    if (index && ring_client_begin(self) == 0) {
        uint64_t block_bytes = mr_client_dataset_block(self->client, dataset);
        ring_client_end(self);
        if (block_bytes == 0)
            PyErr_Format(PyExc_ValueError, "data set %u is not read by ranges", mr_dataset_number(dataset));
        else
            reader = ring_range_new(state, (PyObject *)self, dataset, block_bytes, exact, index, object,
                                    PyBytes_AS_STRING(label));
    }
    Py_DECREF(label);
    return reader;
}

static PyObject *client_dataset_listed(Client *self, PyObject *arg)
{
    uint64_t dataset;
    if (ring_uint64(arg, &dataset) || ring_client_begin(self))
        return NULL;
    enum mr_dataset_state state = mr_client_dataset_state(self->client, dataset);
    uint64_t listed = 0, pages = 0;
    if (state != MR_DATASET_FAILED) {
        const struct mr_board_dataset *entry = &mr_client_board(self->client)->dataset[mr_dataset_number(dataset)];
        listed = atomic_load_explicit(&entry->listed, memory_order_relaxed);
        pages = atomic_load_explicit(&entry->pages, memory_order_relaxed);
    }
    ring_client_end(self);
    if (state == MR_DATASET_FAILED)
        return ring_raise();
    return Py_BuildValue("NKK", PyBool_FromLong(state == MR_DATASET_READY), (unsigned long long)listed,
                         (unsigned long long)pages);
}

static PyObject *client_index(Client *self, PyObject *arg)
{
    uint64_t dataset;
    if (ring_uint64(arg, &dataset) || ring_client_begin(self))
        return NULL;
    int fd = -1, rc;
    uint64_t size;
    Py_BEGIN_ALLOW_THREADS
        rc = mr_client_index(self->client, dataset, &fd, &size);
    Py_END_ALLOW_THREADS
    ring_client_end(self);
    if (rc)
        return ring_raise();
    PyObject *index = ring_index_from_fd(ring_state_of(Py_TYPE(self)), fd);
    close(fd);
    return index;
}

/* ---- lanes ---- */

static PyObject *client_ready(Client *self, PyObject *ignored)
{
    (void)ignored;
    if (ring_client_begin(self))
        return NULL;
    struct mr_views *views;
    Py_BEGIN_ALLOW_THREADS
        views = mr_client_views(self->client);
    Py_END_ALLOW_THREADS
    if (views)
        follow_views(self, views);
    ring_client_end(self);
    if (!views && mr_error_code() != MR_E_BUSY)
        return ring_raise();
    return PyBool_FromLong(views != NULL);
}

static PyObject *client_put_loop(Client *self, PyObject *args)
{
    const char *key;
    unsigned long long epoch, cursor, seed, block;
    struct mr_loop loop = {0};
    if (!PyArg_ParseTuple(args, "s(KKKIIIKI):put_loop", &key, &epoch, &cursor, &seed, &loop.batch, &loop.world,
                          &loop.rank, &block, &loop.mix) ||
        ring_client_begin(self))
        return NULL;
    loop.epoch = epoch;
    loop.cursor = cursor;
    loop.seed = seed;
    loop.block = block;
    int rc;
    Py_BEGIN_ALLOW_THREADS
        rc = mr_client_put_loop(self->client, key, &loop);
    Py_END_ALLOW_THREADS
    ring_client_end(self);
    if (rc)
        return ring_raise();
    Py_RETURN_NONE;
}

static PyObject *client_open_lane(Client *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"dataset", "index", "window", "least", "key", "writable", "alone", "parent", NULL};
    unsigned window, least;
    unsigned long long dataset;
    PyObject *index_object;
    const char *key = NULL;
    int writable = 0, alone = 0;
    long parent = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KOII|z$ppl:open_lane", names, &dataset, &index_object, &window,
                                     &least, &key, &writable, &alone, &parent))
        return NULL;
    struct ring_state *state = ring_state_of(Py_TYPE(self));
    struct ring_index *index = ring_index_of(state, index_object);
    if (!index || ring_client_begin(self))
        return NULL;
    struct mr_loop loop = {0};
    bool has_loop = false;
    if (!self->views) {
        ring_client_end(self);
        PyErr_SetString(PyExc_RuntimeError, "open_lane before ready() was True");
        return NULL;
    }
    int rc;
    struct mr_lane lane;
    struct mr_views *views = NULL;
    Py_BEGIN_ALLOW_THREADS
        rc = mr_client_open_lane(self->client, dataset, window, least, key, &lane, &loop, &has_loop);
        if (rc == 0 && !(views = mr_client_views(self->client))) {
            uint32_t number = lane.lane;
            mr_lane_unmap(&lane);
            mr_client_close_lane(self->client, number);
            rc = -1;
        }
    Py_END_ALLOW_THREADS
    if (views) {
        self->lanes++; /* from here on the connection cannot be closed */
        follow_views(self, views);
        mr_views_ref(views); /* another thread may let the connection's go as soon as we leave it */
    }
    ring_client_end(self);
    if (rc)
        return ring_raise();
    PyObject *object = ring_lane_new(state, (PyObject *)self, views, &lane, dataset, index, writable,
                                     alone ? MR_REQUEST_ALONE : 0, parent);
    mr_views_unref(views);
    if (!object)
        return NULL;
    if (!has_loop)
        return Py_BuildValue("NO", object, Py_None);
    return Py_BuildValue("N(KKKIIIKI)", object, (unsigned long long)loop.epoch, (unsigned long long)loop.cursor,
                         (unsigned long long)loop.seed, loop.batch, loop.world, loop.rank,
                         (unsigned long long)loop.block, loop.mix);
}

/* ---- checkpoint writers ---- */

static PyObject *client_open_writer(Client *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"uri", "if_absent", "sharers", NULL};
    PyObject *uri = NULL;
    int if_absent = 0;
    unsigned sharers = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|pI:open_writer", names, ring_name_bytes, &uri, &if_absent,
                                     &sharers))
        return NULL;
    if (ring_client_begin(self)) {
        Py_DECREF(uri);
        return NULL;
    }
    struct mr_ckpt_writer opened;
    int rc;
    Py_BEGIN_ALLOW_THREADS
        rc = mr_client_open_writer(self->client, PyBytes_AS_STRING(uri), if_absent, sharers, &opened);
    Py_END_ALLOW_THREADS
    if (!rc)
        self->writers++;
    ring_client_end(self);
    Py_DECREF(uri);
    if (!rc)
        return ring_writer_new(ring_state_of(Py_TYPE(self)), (PyObject *)self, &opened);
    if (mr_error_code() != MR_E_BUSY)
        return ring_raise();
    return PyUnicode_DecodeUTF8(mr_error_text(), (Py_ssize_t)strlen(mr_error_text()), "backslashreplace");
}

/* ---- the rest ---- */

static PyObject *client_config(Client *self, PyObject *ignored)
{
    (void)ignored;
    if (ring_client_begin(self))
        return NULL;
    int fd;
    Py_BEGIN_ALLOW_THREADS
        fd = mr_client_config(self->client);
    Py_END_ALLOW_THREADS
    ring_client_end(self);
    return fd < 0 ? ring_raise() : PyLong_FromLong(fd);
}

static PyObject *client_prepare(Client *self, PyObject *ignored)
{
    (void)ignored;
    if (ring_client_begin(self))
        return NULL;
    int rc;
    bool done;
    Py_BEGIN_ALLOW_THREADS
        rc = mr_client_prepare(self->client, &done);
    Py_END_ALLOW_THREADS
    ring_client_end(self);
    if (!rc)
        return PyBool_FromLong(done);
    if (mr_error_code() != MR_E_BUSY)
        return ring_raise();
    Py_RETURN_NONE;
}

static PyObject *client_batches(Client *self, PyObject *args)
{
    int fd = -1;
    if (!PyArg_ParseTuple(args, "|i:batches", &fd) || ring_client_begin(self))
        return NULL;
    uint64_t bytes;
    int rc;
    Py_BEGIN_ALLOW_THREADS
        rc = mr_client_batches(self->client, fd, &bytes);
    Py_END_ALLOW_THREADS
    ring_client_end(self);
    return rc ? ring_raise() : PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *client_meter(Client *self, PyObject *args)
{
    int fd;
    if (!PyArg_ParseTuple(args, "i:meter", &fd) || ring_client_begin(self))
        return NULL;
    char *epochs;
    Py_BEGIN_ALLOW_THREADS
        epochs = mr_client_meter(self->client, fd);
    Py_END_ALLOW_THREADS
    ring_client_end(self);
    if (!epochs)
        return ring_raise();
    PyObject *text = PyUnicode_DecodeFSDefault(epochs);
    free(epochs);
    return text;
}

static PyObject *client_stat(Client *self, PyObject *ignored)
{
    (void)ignored;
    if (ring_client_begin(self))
        return NULL;
    char *text;
    Py_BEGIN_ALLOW_THREADS
        text = mr_client_stat(self->client);
    Py_END_ALLOW_THREADS
    ring_client_end(self);
    if (!text)
        return ring_raise();
    PyObject *result = PyUnicode_FromString(text);
    free(text);
    return result;
}

static PyObject *client_get_run_id(Client *self, void *closure)
{
    (void)closure;
    if (ring_client_begin(self))
        return NULL;
    const struct mr_board *board = mr_client_board(self->client);
    PyObject *text = PyUnicode_DecodeASCII(board->run_id, (Py_ssize_t)strnlen(board->run_id, sizeof(board->run_id)),
                                           "backslashreplace");
    ring_client_end(self);
    return text;
}

static PyObject *client_get_pid(Client *self, void *closure)
{
    (void)closure;
    if (ring_client_begin(self))
        return NULL;
    uint32_t pid = mr_client_board(self->client)->supervisor_pid;
    ring_client_end(self);
    return PyLong_FromUnsignedLong(pid);
}

static PyMethodDef client_methods[] = {
    {"close", (PyCFunction)client_close, METH_NOARGS, "Ends the connection. May be called twice."},
    {"check", (PyCFunction)client_check, METH_NOARGS,
     "SupervisorGone when the supervisor has ended, or gives no sign of life. For those who wait for it."},
    {"open_dataset", (PyCFunction)(void (*)(void))client_open_dataset, METH_VARARGS | METH_KEYWORDS,
     "open_dataset(*, name=None, uris=None, names_fd=-1, format=\"\", nth=0, into=None) -> (number, tail, on_error). "
     "Returns before the listing is done. nth > 0: the nth listing of these URIs, of objects, until close_dataset. "
     "into: an Opened that holds it from now on, and closes it."},
    {"open_listing", (PyCFunction)client_open_listing, METH_VARARGS,
     "open_listing(like, digest, into=None) -> (number, tail, on_error): the data set `like` with the listing of that "
     "digest. Returns before it is found."},
    {"open_ranged", (PyCFunction)client_open_ranged, METH_VARARGS,
     "open_ranged(names_fd, block_bytes, into=None) -> number, or None: ask again. For range_reader; ends with "
     "close_dataset."},
    {"block_bytes", (PyCFunction)client_block_bytes, METH_O,
     "block_bytes(number) -> int: the most that one request of a data set of open_ranged may ask for; 0: of others."},
    {"close_dataset", (PyCFunction)client_close_dataset, METH_O,
     "close_dataset(number): one of open_ranged, or of open_dataset with nth."},
    {"close_unused", (PyCFunction)client_close_unused, METH_NOARGS,
     "close_unused(): closes what an Opened held that went. It makes room, also for other processes."},
    {"range_reader", (PyCFunction)client_range_reader, METH_VARARGS,
     "range_reader(dataset, index, object, label, exact=False) -> RangeReader; exact: small reads ask for no more."},
    {"dataset_listed", (PyCFunction)client_dataset_listed, METH_O,
     "dataset_listed(number) -> (done, objects so far, requests); the data set's error when it has failed."},
    {"index", (PyCFunction)client_index, METH_O, "index(number) -> Index, once the listing is done."},
    {"ready", (PyCFunction)client_ready, METH_NOARGS, "ready() -> bool: the arenas are there, and mapped."},
    {"put_loop", (PyCFunction)client_put_loop, METH_VARARGS,
     "put_loop(key, (epoch, cursor, seed, batch, world, rank, block, mix)): what lanes of that key are handed."},
    {"open_lane", (PyCFunction)(void (*)(void))client_open_lane, METH_VARARGS | METH_KEYWORDS,
     "open_lane(dataset, index, window, least, key=None, *, writable=False, alone=False, parent=0) -> (Lane, loop or "
     "None)."},
    {"open_writer", (PyCFunction)(void (*)(void))client_open_writer, METH_VARARGS | METH_KEYWORDS,
     "open_writer(uri, if_absent=False, sharers=1) -> Writer, or str: why none can be had now."},
    {"prepare", (PyCFunction)client_prepare, METH_NOARGS,
     "prepare() -> bool or None: a step of making ready for a checkpoint writer that will be opened. True: nothing is "
     "left to do; None: ask again a moment later, the supervisor is at it."},
    {"meter", (PyCFunction)client_meter, METH_VARARGS,
     "meter(fd) -> log.epochs, a path or \"\": the counters of a Meter are read by the supervisor from now on."},
    {"batches", (PyCFunction)client_batches, METH_VARARGS,
     "batches(fd=-1) -> bytes that the batches of this node's loaders may take; fd: a BatchArena that is to be "
     "counted."},
    {"config", (PyCFunction)client_config, METH_NOARGS,
     "config() -> int: a descriptor of the configuration, for `millrace-worker` (MILLRACE_CONFIG_FD). The caller's."},
    {"stat", (PyCFunction)client_stat, METH_NOARGS, "stat() -> str: JSON."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef client_getset[] = {
    {"run_id", (getter)client_get_run_id, NULL, "the supervisor's run", NULL},
    {"pid", (getter)client_get_pid, NULL, "the supervisor's process", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot client_slots[] = {
    {Py_tp_new, client_new},
    {Py_tp_dealloc, client_dealloc},
    {Py_tp_methods, client_methods},
    {Py_tp_getset, client_getset},
    {Py_tp_doc, "Client(path, role='job', timeout_ms=0): a connection to the supervisor's socket."},
    {0, NULL},
};
PyType_Spec ring_client_spec = {
    .name = "millrace._ring.Client",
    .basicsize = sizeof(Client),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = client_slots,
};
