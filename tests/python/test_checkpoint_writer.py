"""millrace.checkpoint.writer over a supervisor, its write workers, and devstore or a folder: what is there then."""

from __future__ import annotations

import concurrent.futures
import errno
import gc
import io
import os
import pickle
import random
import subprocess
import sys
import textwrap
import threading
import time
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy
import pytest
import torch

import millrace
from millrace import checkpoint
from millrace._errors import from_code
from millrace.checkpoint import _save, _writer
from millrace.fs import GSFileSystem
from tests.conftest import ROOT, Server, our_processes, start_devstore
from tests.python.checkpoint_places import CONFIG, MIB, PART, Place, bucket_place, folder_place
from tests.serve import DEADLINE_S, Supervisor, start_supervisor, wait_for
from tests.stores import create_bucket

MISSING = "gs://no-such-bucket/name"


@pytest.fixture(scope="module")
def store() -> Iterator[Server]:
    started = start_devstore("--memory", "--no-md5")
    create_bucket(started.url, "bkt")
    yield started
    started.stop()


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory, millrace_bin: Path, store: Server) -> Iterator[Supervisor]:
    """One for all tests of the file; its write workers start here."""
    started = start_supervisor(millrace_bin, tmp_path_factory.mktemp("supervisor"), store.url, CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_SOCKET", str(started.socket))
        checkpoint.writer("gs://bkt/first").close()
    yield started
    gc.collect()
    assert started.stop() == 0, started.log.read_text()


@pytest.fixture(params=["gs", "file"])
def place(request: pytest.FixtureRequest, socket: str, store: Server, tmp_path: Path) -> Place:
    if request.param == "gs":
        return bucket_place(store, request.node.name)
    return folder_place(tmp_path)


@pytest.fixture
def bucket(socket: str, store: Server, request: pytest.FixtureRequest) -> Place:
    return bucket_place(store, request.node.name)


@pytest.fixture
def folder(socket: str, tmp_path: Path) -> Place:
    return folder_place(tmp_path)


def some_bytes(count: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(count)


# ---- what is there afterwards ----


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 4 * PART + 17])
def test_bytes(place: Place, size: int) -> None:
    """Of one slot, of several, and of more than the memory."""
    data = some_bytes(size, size)
    rng = random.Random(1)
    with checkpoint.writer(place / "a/b c") as file:
        at = 0
        while at < size:
            step = rng.choice([1, 64, 5000, 100_000, PART // 2, 2 * PART])
            assert file.write(data[at : at + step]) == len(data[at : at + step])
            at = min(size, at + step)
            assert file.tell() == at
        assert place.fetch(place / "a/b c") is None
        saved = file.close()
    assert saved.uri == place / "a/b c"
    assert saved.size == size
    assert saved.crc32c == google_crc32c.value(data)
    assert saved.generation > 0
    assert file.closed and file.close() == saved
    assert place.fetch(place / "a/b c") == data


def test_it_replaces_what_is_there(place: Place) -> None:
    old, new = some_bytes(PART + 5, 1), some_bytes(2 * PART + 5, 2)
    for data in (old, new):
        with checkpoint.writer(place / "name") as file:
            file.write(data)
    assert place.fetch(place / "name") == new


def test_if_absent(place: Place) -> None:
    for size in (100, 2 * PART):
        name = place / f"name-{size}"
        data = some_bytes(size)
        with checkpoint.writer(name, if_absent=True) as file:
            file.write(data)
        with pytest.raises(FileExistsError), checkpoint.writer(name, if_absent=True) as file:
            file.write(b"x" * size)
        assert place.fetch(name) == data


@pytest.mark.parametrize("size", [0, 100, 3 * PART])
def test_an_exception_leaves_no_object(place: Place, size: int) -> None:
    with pytest.raises(KeyError), checkpoint.writer(place / "name") as file:
        file.write(bytes(size))
        raise KeyError
    assert file.closed
    with pytest.raises(ValueError, match="aborted"):
        file.close()
    with checkpoint.writer(place / "other") as file:  # the memory is there again
        file.write(bytes(size))
    assert place.fetch(place / "name") is None


def test_an_exception_keeps_the_old_object(place: Place) -> None:
    with checkpoint.writer(place / "name") as file:
        file.write(b"old")
    with pytest.raises(KeyError), checkpoint.writer(place / "name") as file:
        file.write(bytes(3 * PART))
        raise KeyError
    assert place.fetch(place / "name") == b"old"


def test_unclosed(folder: Place, caplog: pytest.LogCaptureFixture) -> None:
    file = checkpoint.writer(folder / "name")
    file.write(bytes(100))
    with pytest.warns(ResourceWarning, match="never closed"):
        del file
        gc.collect()
    assert "nothing has been saved" in caplog.text
    assert folder.fetch(folder / "name") is None


# ---- what writes through it ----


STATE = {"weight": torch.arange(100_000, dtype=torch.float32), "half": torch.ones(7, dtype=torch.bfloat16), "step": 3}


def same_state(got: Any) -> bool:
    return (
        torch.equal(got["weight"], STATE["weight"])  # type: ignore[arg-type]
        and torch.equal(got["half"], STATE["half"])  # type: ignore[arg-type]
        and got["step"] == 3
    )


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_save(bucket: Place, zipped: bool) -> None:
    with checkpoint.writer(bucket / "state.pt") as file:
        torch.save(STATE, file, _use_new_zipfile_serialization=zipped)
    data = bucket.fetch(bucket / "state.pt")
    assert data is not None
    assert same_state(torch.load(io.BytesIO(data), weights_only=True))


def test_torch_save_that_fails_in_the_middle(bucket: Place) -> None:
    class Unpicklable:
        def __reduce__(self) -> Any:
            raise KeyError("no")

    with pytest.raises(KeyError), checkpoint.writer(bucket / "state.pt") as file:
        torch.save({"weight": STATE["weight"], "bad": Unpicklable()}, file)
    assert bucket.fetch(bucket / "state.pt") is None


def test_pickle_numpy_and_text(folder: Place) -> None:
    with checkpoint.writer(folder / "a.pickle") as file:
        pickle.dump({"a": [1, 2, 3]}, file)
    assert pickle.loads(folder.fetch(folder / "a.pickle") or b"") == {"a": [1, 2, 3]}
    array = numpy.arange(1_000_000).reshape(1000, 1000)
    for name, values in (("rows", array), ("columns", array.T)):
        with checkpoint.writer(folder / name) as file:
            numpy.save(file, values)
        assert (numpy.load(folder.base.removeprefix("file://") + f"/{name}") == values).all()
    with checkpoint.writer(folder / "text") as file:
        buffered = io.BufferedWriter(file)
        text = io.TextIOWrapper(buffered, encoding="utf-8")
        for i in range(10_000):
            text.write(f"line {i} é\n")
        text.flush()
        text.close()  # closes the writer as well
    assert file.closed
    assert folder.fetch(folder / "text") == "".join(f"line {i} é\n" for i in range(10_000)).encode()


def test_any_buffer(folder: Place) -> None:
    array: Any = numpy.arange(12, dtype=numpy.int32).reshape(3, 4)
    buffers: list[Any] = [
        b"bytes",
        bytearray(b"array"),
        memoryview(b"view")[1:3],
        memoryview(array),  # of several dimensions: its bytes count
        array,
        torch.arange(5).numpy(),
        b"",
        memoryview(b""),
    ]
    with checkpoint.writer(folder / "name") as file:
        for buffer in buffers:
            assert file.write(buffer) == memoryview(buffer).nbytes
        for bad in (memoryview(b"abcdef")[::2], array[:, 1], array.T):
            with pytest.raises(BufferError, match="side by side"):
                file.write(bad)
        for not_a_buffer in ("text", 3, None):
            with pytest.raises(TypeError, match="bytes-like"):
                file.write(not_a_buffer)
    assert folder.fetch(folder / "name") == b"".join(memoryview(b).tobytes() for b in buffers)


def test_the_caller_may_reuse_the_buffer(bucket: Place) -> None:
    buffer, expected = bytearray(PART // 3), b""
    with checkpoint.writer(bucket / "name") as file:
        for i in range(10):
            buffer[:] = some_bytes(len(buffer), i)
            file.write(buffer)
            expected += buffer
    assert bucket.fetch(bucket / "name") == expected


@pytest.mark.parametrize("size", [100, 3 * PART])
def test_what_has_a_files_name_already(folder: Place, tmp_path: Path, size: int) -> None:
    """A link stays, and leads to what is saved; a file leaves its mode and owner to the next one; a pipe is refused."""

    def save(name: str, **arguments: Any) -> Path:
        with checkpoint.writer(tmp_path / name, **arguments) as file:
            file.write(bytes(size))
        return tmp_path / name

    (tmp_path / "disk").mkdir()
    for target in ("disk/there", str(tmp_path / "disk" / "not yet")):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(target)
        if target == "disk/there":
            (tmp_path / target).write_bytes(b"old")
        assert save("link").is_symlink() and (tmp_path / target).stat().st_size == size
    with pytest.raises(FileExistsError):
        save("link", if_absent=True)
    kept = tmp_path / "kept"
    kept.touch()
    if os.geteuid() == 0:
        os.chown(kept, 1234, 55)
    kept.chmod(0o640)
    owner = kept.stat()
    with checkpoint.writer(kept) as file:
        file.write(bytes(size))
        if size > PART:  # what is written before the end is not open to others either
            wait_for(lambda: [part for part in tmp_path.glob(".*") if part.stat().st_mode & 0o777 == 0o640])
    status = kept.stat()
    assert (status.st_mode & 0o777, status.st_size) == (0o640, size)
    assert (status.st_uid, status.st_gid) == (owner.st_uid, owner.st_gid)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="it is no regular file"):
        save("pipe")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(millrace.Error, match="Too many levels of symbolic links"):
        save("loop")
    assert sorted(found.name for found in tmp_path.rglob("*")) == [
        *("disk", "kept", "link", "loop", "not yet", "pipe", "there")
    ]


def test_a_file_object(folder: Place) -> None:
    file = checkpoint.writer(folder / "name")
    assert file.writable() and not file.readable() and not file.seekable() and not file.isatty()
    assert "open" in repr(file)
    file.flush()
    for refused in (file.fileno, file.read, lambda: file.seek(0), lambda: file.truncate(0)):
        with pytest.raises(io.UnsupportedOperation):
            refused()
    for gone in (lambda: file.seek(0, io.SEEK_CUR), file.getvalue, file.getbuffer):  # what io.BytesIO has
        with pytest.raises(io.UnsupportedOperation) as sent:
            gone()
        assert " is sent as it is written; for that write an io.BytesIO, and then its bytes here" in str(sent.value)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(file)
    file.writelines([b"a", b"b"])
    file.close()
    assert "closed" in repr(file)
    for closed in (lambda: file.write(b"x"), file.tell, file.flush, file.getvalue):
        with pytest.raises(ValueError, match="closed"):
            closed()
    assert folder.fetch(folder / "name") == b"ab"


# ---- saves that go on by themselves ----


def test_a_save_without_waiting(place: Place) -> None:
    data = some_bytes(3 * PART + 1)
    with checkpoint.writer(place / "name") as file:
        file.write(data)
        save = file.close(wait=False)
    assert isinstance(save, concurrent.futures.Future)
    assert not save.cancel()
    stored, total = save.progress()
    assert 0 <= stored <= total == len(data)
    assert file.close(wait=False) is save
    saved = save.result(DEADLINE_S)
    assert saved == file.close()
    assert save.uri == saved.uri == place / "name" and save.exception() is None
    assert save.progress() == (len(data), len(data))
    assert place.fetch(place / "name") == data


def test_saves_where_no_thread_can_be_started(folder: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks waits; the thread is begun once it can be."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "millrace-saves":
            raise RuntimeError("can't start new thread")
        start(thread)

    def save(name: str) -> checkpoint.Save:
        file = checkpoint.writer(folder / name)
        file.write(b"data")
        return file.close(wait=False)

    _save._waiter = _save._Waiter()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    first, second = save("first"), save("second")
    assert first.result(DEADLINE_S).size == 4
    with pytest.raises(concurrent.futures.TimeoutError):
        second.result(0)
    monkeypatch.undo()
    third = save("third")
    concurrent.futures.wait([second, third], DEADLINE_S)
    assert second.done() and third.done()


def test_many_saves_at_a_time(folder: Place) -> None:
    saves = []
    for i in range(20):  # each waits for memory where it must
        file = checkpoint.writer(folder / f"name-{i}")
        file.write(bytes([i]) * (i * MIB))
        saves.append(file.close(wait=False))
    _, missing = concurrent.futures.wait(saves, DEADLINE_S)
    assert not missing
    for i, save in enumerate(saves):
        assert folder.fetch(save.result().uri) == bytes([i]) * (i * MIB)
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "millrace-saves"] in ([True], [])


def test_a_failure_that_nobody_asked_for_is_raised_by_the_next_writer(
    bucket: Place, caplog: pytest.LogCaptureFixture
) -> None:
    file = checkpoint.writer(MISSING)
    file.write(b"x")
    save = file.close(wait=False)
    concurrent.futures.wait([save], DEADLINE_S)
    assert "no-such-bucket" in caplog.text
    with pytest.raises(FileNotFoundError, match="the save of gs://no-such-bucket/name before this one failed: "):
        checkpoint.writer(bucket / "name")
    checkpoint.writer(bucket / "name").close()  # once
    file = checkpoint.writer(MISSING)
    file.write(b"x")
    save = file.close(wait=False)
    assert isinstance(save.exception(DEADLINE_S), FileNotFoundError)
    checkpoint.writer(bucket / "name").close()  # not again


def test_a_failure_is_noted_before_it_can_be_had(bucket: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sees the end of a save and begins the next writer at once meets its failure there."""
    noted: list[bool] = []
    inherited = concurrent.futures.Future.set_exception

    def set_exception(save: _save.Save, error: BaseException | None) -> None:
        noted.append(save in _save._waiter._failed)
        inherited(save, error)

    monkeypatch.setattr(_save.Save, "set_exception", set_exception)
    file = checkpoint.writer(MISSING)
    file.write(b"x")
    save = file.close(wait=False)
    concurrent.futures.wait([save], DEADLINE_S)
    assert noted == [True]
    with pytest.raises(FileNotFoundError, match="before this one failed"):
        checkpoint.writer(bucket / "name")


def test_a_failure_that_a_signal_hides_is_raised_by_the_next_writer(
    bucket: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    inherited = concurrent.futures.Future.set_exception

    def set_exception(save: _save.Save, error: BaseException | None) -> None:
        inherited(save, error)
        raise KeyboardInterrupt

    monkeypatch.setattr(_save.Save, "set_exception", set_exception)
    file = checkpoint.writer(MISSING)
    file.write(b"x")
    with pytest.raises(KeyboardInterrupt):
        file.close()
    wait_for(lambda: not _save._waiter._pending, "nobody waits for it")
    with pytest.raises(FileNotFoundError, match="before this one failed"):
        checkpoint.writer(bucket / "name")


# ---- errors ----


def test_no_such_bucket(socket: str) -> None:
    with (
        pytest.raises(FileNotFoundError, match="no-such-bucket"),
        checkpoint.writer(MISSING) as file,
    ):
        file.write(b"x")
    with (
        pytest.raises(FileNotFoundError, match="no-such-bucket"),
        checkpoint.writer(MISSING) as file,
    ):
        for _ in range(100):  # found out while the bytes are written
            file.write(bytes(MIB))
    with pytest.raises(FileNotFoundError, match="no-such-bucket"):  # what is read last is the reason
        file.close()


def test_torch_save_ends_with_the_reason(socket: str) -> None:
    """It writes once more on its way out."""
    state = {"layer": torch.zeros(20 * MIB)}
    with pytest.raises(FileNotFoundError, match="no-such-bucket"), checkpoint.writer(MISSING) as file:
        torch.save(state, file)
    with pytest.raises(FileNotFoundError, match="no-such-bucket"):
        file.close()


def test_no_permission(tmp_path: Path, millrace_bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = start_devstore("--memory", "--deny", "storage.objects.create")
    create_bucket(store.url, "bkt")
    started = start_supervisor(millrace_bin, tmp_path, store.url, CONFIG)
    monkeypatch.setenv("MILLRACE_SOCKET", str(started.socket))
    try:
        for size in (1, 3 * PART):
            with pytest.raises(PermissionError, match="gs://bkt/name"), checkpoint.writer("gs://bkt/name") as file:
                file.write(bytes(size))
    finally:
        assert started.stop() == 0
        store.stop()


def test_who_may_not_list(tmp_path: Path, millrace_bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file needs no listing: whether the object is there, the close says as well."""
    store = start_devstore("--memory", "--deny", "storage.objects.list")
    create_bucket(store.url, "bkt")
    started = start_supervisor(millrace_bin, tmp_path, store.url, CONFIG)
    monkeypatch.setenv("MILLRACE_SOCKET", str(started.socket))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.url)
    try:
        with millrace.open("gs://bkt/name", "xb") as file:
            file.write(b"first")
        with pytest.raises(FileExistsError, match="gs://bkt/name"), millrace.open("gs://bkt/name", "xb") as file:
            file.write(b"second")
        with millrace.open("gs://bkt/name") as read:
            assert read.read() == b"first"
        (tmp_path / "local").write_bytes(b"third")
        files = GSFileSystem(skip_instance_cache=True)
        files.put(str(tmp_path / "local"), "gs://bkt/put")
        files.cp("gs://bkt/put", "gs://bkt/copied")
        assert files.cat_file("bkt/copied") == b"third"
        with pytest.raises(PermissionError, match="gs://bkt/no"):
            files.isdir("gs://bkt/no")
    finally:
        assert started.stop() == 0
        store.stop()


@pytest.mark.parametrize("size", [1, 30 * MIB])  # it fails at the end, or while the bytes are written
def test_a_failed_save_keeps_nothing(socket: str, size: int) -> None:
    class Bytes(bytearray):
        pass

    def save() -> weakref.ref[Bytes]:
        data = Bytes(size)
        kept = weakref.ref(data)
        file = checkpoint.writer(MISSING)
        with pytest.raises(FileNotFoundError, match="no-such-bucket"), file:
            for _ in range(4):
                file.write(data)
            file.close()
        for again in (file.close, file.close):
            with pytest.raises(FileNotFoundError, match="no-such-bucket"):
                again()
        return kept

    gc.collect()
    gc.disable()
    try:
        assert save()() is None
    finally:
        gc.enable()


def test_a_folder_that_may_not_be_written(folder: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError), checkpoint.writer(tmp_path / "file" / "name") as file:
        file.write(b"x")


@pytest.mark.parametrize("size", [1, 40 << 20])
def test_the_name_is_a_folders(folder: Place, tmp_path: Path, size: int) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ValueError, match="model: it is a folder"), checkpoint.writer(tmp_path / "model") as file:
        file.write(bytes(size))
    assert list(tmp_path.glob("model/*")) == []


def test_no_memory_for_another_writer(
    folder: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_writer, "WARN_AFTER_S", 0.05)
    first, second = checkpoint.writer(folder / "1"), checkpoint.writer(folder / "2")
    caplog.clear()  # they may have waited for what an earlier test's writers had
    now = [0.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: now.append(now.pop() + s))
    with monkeypatch.context() as patch, pytest.raises(TimeoutError, match=r"checkpoint\.arena_bytes"):
        patch.setattr(_writer, "time", clock)
        checkpoint.writer(folder / "3", timeout_s=0.3)
    assert len([record for record in caplog.records if "waits for memory" in record.message]) == 1
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        first.abort()

    monkeypatch.setattr(_writer, "time", types.SimpleNamespace(monotonic=time.monotonic, sleep=pause))
    checkpoint.writer(folder / "3", timeout_s=DEADLINE_S).close()  # it waits for the first
    assert pauses
    second.close()
    assert folder.fetch(folder / "3") == b""


def test_more_sharers_get_less_each(folder: Place) -> None:
    files = [checkpoint.writer(folder / str(i), sharers=2) for i in range(2)]
    for file in files:
        file.write(some_bytes(3 * PART))
        file.close()
    with pytest.raises(ValueError, match="sharers"):
        checkpoint.writer(folder / "name", sharers=0)


def test_threads(folder: Place) -> None:
    """Each its own writer; one writer is for one thread at a time."""

    def save(number: int) -> bytes:
        data = some_bytes(3 * PART + number, number)
        with checkpoint.writer(folder / f"name-{number}") as file:
            for at in range(0, len(data), 1_000_003):
                file.write(data[at : at + 1_000_003])
        return data

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for number, data in enumerate(pool.map(save, range(4))):
            assert folder.fetch(folder / f"name-{number}") == data


def test_fork(folder: Place) -> None:
    file = checkpoint.writer(folder / "name")
    file.write(b"parent")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            file.write(b"child")
        except ValueError as error:
            status = 0 if "before the fork" in str(error) else 2
        try:
            file.close()
        except ValueError:
            del file
            gc.collect()
            own = checkpoint.writer(folder / "child")
            own.write(b"its own")
            own.close()
            os._exit(status)
        os._exit(3)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    file.write(b" still")
    file.close()
    assert folder.fetch(folder / "name") == b"parent still"
    assert folder.fetch(folder / "child") == b"its own"


def test_a_full_disk_has_its_number() -> None:
    error = from_code(12, "cannot write /a/b: No space left on device")
    assert isinstance(error, millrace.Error) and error.errno == errno.ENOSPC
    assert str(error) == "cannot write /a/b: No space left on device"


def test_in_a_data_loader_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    class Samples(torch.utils.data.Dataset[str]):
        def __getitem__(self, index: int) -> str:
            try:
                checkpoint.writer("/tmp/name")
            except millrace.Error as error:
                return str(error)
            return "no error"

        def __len__(self) -> int:
            return 1

    monkeypatch.delenv("MILLRACE_SOCKET", raising=False)
    (texts,) = torch.utils.data.DataLoader(Samples(), num_workers=1)
    assert "a checkpoint writer was made in a DataLoader worker" in texts[0]


# ---- processes of their own ----


def run(code: str, *arguments: str, status: int = 0, **environment: str) -> tuple[str, str]:
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=DEADLINE_S,
        check=False,
    )
    assert process.returncode == status, process.stderr
    return process.stdout, process.stderr


def test_a_promise_outlives_its_process(folder: Place, tmp_path: Path) -> None:
    """With a supervisor of the job, and with a private one, which ends after it."""
    code = """
        import os, signal, sys, millrace.checkpoint
        file = millrace.checkpoint.writer(sys.argv[1])
        for i in range(3):
            file.write(bytes([i]) * 1_000_000)
        file.close(wait=False)
        if len(sys.argv) > 2:
            os.kill(os.getpid(), signal.SIGKILL)
    """
    expected = b"".join(bytes([i]) * 1_000_000 for i in range(3))
    for number, private in enumerate((False, True)):
        for killed in (False, True):
            name = tmp_path / f"name-{number}-{killed}"
            environment = {"MILLRACE_SOCKET": ""} if private else {}
            run(code, str(name), *(["kill"] if killed else []), status=-9 if killed else 0, **environment)
            wait_for(name.exists)
            assert name.read_bytes() == expected
    wait_for(lambda: sum(" serve " in line for line in our_processes().values()) == 1)  # the module's


def test_a_failure_that_nobody_asked_for_is_written_at_exit(store: Server) -> None:
    code = """
        import concurrent.futures, millrace.checkpoint
        file = millrace.checkpoint.writer("gs://no-such-bucket/name")
        file.write(b"x")
        concurrent.futures.wait([file.close(wait=False)])
    """
    _, errors = run(code, MILLRACE_SOCKET="", STORAGE_EMULATOR_HOST=store.url)
    assert "the save of gs://no-such-bucket/name failed, and nothing asked for it: " in errors


@pytest.mark.parametrize(("asks", "status"), [("nobody", 1), ("result", 0), ("next writer", 0), ("close", 0)])
def test_the_exit_status_of_a_run(
    store: Server, millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: str, status: int
) -> None:
    """A promise that was not kept, and whether the program knew."""
    monkeypatch.delenv("MILLRACE_SOCKET", raising=False)
    (tmp_path / "c.toml").write_text(CONFIG)
    code = """
        import concurrent.futures, contextlib, sys, millrace.checkpoint
        file = millrace.checkpoint.writer("gs://no-such-bucket/name")
        file.write(b"x")
        with contextlib.suppress(FileNotFoundError):
            if sys.argv[1] == "close":
                file.close()
            save = file.close(wait=False)
            concurrent.futures.wait([save])
            if sys.argv[1] == "result":
                save.result()
            if sys.argv[1] == "next writer":
                millrace.checkpoint.writer("gs://bkt/name").close()
    """
    ran = subprocess.run(
        [millrace_bin, "run", "-c", tmp_path / "c.toml", "--", sys.executable, "-c", textwrap.dedent(code), asks],
        env={**os.environ, "STORAGE_EMULATOR_HOST": store.url},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == status, ran.stderr
    assert ("is not saved" in ran.stderr) == (status == 1)


def test_killed_while_it_writes(bucket: Place) -> None:
    run(
        """
        import os, signal, sys, millrace.checkpoint
        file = millrace.checkpoint.writer(sys.argv[1])
        file.write(bytes(12 << 20))
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        bucket / "name",
        status=-9,
    )
    with checkpoint.writer(bucket / "other") as file, checkpoint.writer(bucket / "another") as second:
        file.write(bytes(12 << 20))  # the memory is there again
        second.write(b"x")
    assert bucket.fetch(bucket / "name") is None


def test_importing_needs_neither_torch_nor_numpy() -> None:
    out, _ = run("import sys, millrace.checkpoint; print('torch' in sys.modules, 'numpy' in sys.modules)")
    assert out.split() == ["False", "False"]
