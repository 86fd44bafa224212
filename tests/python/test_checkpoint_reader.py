"""millrace.checkpoint.reader(): the same bytes as a local file gives, whatever is asked for in which order."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
import os
import pickle
import random
import signal
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

import numpy
import pytest
import torch

import millrace
from millrace import checkpoint
from millrace._connection import connect
from millrace.checkpoint._reader import readers
from tests.conftest import StartDevstore
from tests.serve import DEADLINE_S, Supervisor, start_supervisor, wait_for
from tests.stores import requests

from .conftest import CONFIG, MakeFolder
from .helpers import in_its_call, reads_alike

MIB = 1 << 20
BLOCK = MIB  # of this supervisor's small arena


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "checkpoint"
    path.write_bytes(random.Random(1).randbytes(12 * BLOCK + 12345))
    return path


def stat(path: str) -> dict[str, Any]:
    return dict(json.loads(connect(path, 0).client.stat()))


# ---- bytes ----


@pytest.mark.random
@pytest.mark.parametrize("seed", range(12))
def test_it_reads_as_a_local_file_does(socket: str, large: Path, seed: int) -> None:
    size = large.stat().st_size
    with large.open("rb", buffering=0) as local, checkpoint.reader(large) as remote:
        assert remote.size == size
        reads_alike(remote, local, size, BLOCK, seed)


def test_forward_in_small_steps(socket: str, large: Path) -> None:
    with large.open("rb") as local, checkpoint.reader(large) as remote:
        while data := remote.read1(100_000):
            assert data == local.read(100_000)
        assert not local.read(1)


def test_an_empty_object(socket: str, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with checkpoint.reader(tmp_path / "empty") as file:
        assert (file.size, file.read(), file.read(10), file.readinto(bytearray(3))) == (0, b"", b"", 0)
        assert file.seek(5) == 5
        assert file.read() == b""
        assert (file.getvalue(), bytes(file.getbuffer())) == (b"", b"")


def test_the_whole_as_of_a_bytesio(socket: str, large: Path) -> None:
    with checkpoint.reader(large) as file:
        file.seek(1000)
        assert file.getvalue() == large.read_bytes()
        buffer = file.getbuffer()
        assert buffer == large.read_bytes() and file.tell() == 1000
        buffer[0] ^= 1  # of a copy
        assert file.getvalue() == large.read_bytes()


def test_the_standard_library_reads_it(socket: str, large: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.write(large, "member")
    with checkpoint.reader(tmp_path / "zip") as file, zipfile.ZipFile(file) as archive:
        assert archive.read("member") == large.read_bytes()
    value = {"a": list(range(1000)), "b": "text"}
    (tmp_path / "pickle").write_bytes(pickle.dumps(value))
    with checkpoint.reader(tmp_path / "pickle") as file:
        assert pickle.load(file) == value
    with checkpoint.reader(large) as file, io.BufferedReader(file) as buffered:
        local = large.read_bytes()
        assert buffered.peek(3)[:3] == local[:3]
        assert buffered.read(3 * BLOCK) == local[: 3 * BLOCK]
        assert buffered.readline() == local[3 * BLOCK : local.index(b"\n", 3 * BLOCK) + 1]
    numpy.save(tmp_path / "array.npy", numpy.arange(100_000))
    with checkpoint.reader(tmp_path / "array.npy") as file:
        assert numpy.array_equal(numpy.load(file), numpy.arange(100_000))


def test_torch_load(socket: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = {f"layer{i}": torch.randn(300, 400) for i in range(12)} | {"small": torch.arange(10)}
    path = tmp_path / "model.pt"
    torch.save(state, path)
    for arguments in ({"weights_only": True}, {"weights_only": False}, {"map_location": "cpu"}):
        with checkpoint.reader(path) as file:
            loaded = torch.load(file, **arguments)
        assert loaded.keys() == state.keys()
        assert all(torch.equal(loaded[name], state[name]) for name in state)
    with checkpoint.reader(path) as file, pytest.raises(ValueError, match="file path"):
        torch.load(file, mmap=True)
    torch.save(state, path, _use_new_zipfile_serialization=False)
    with checkpoint.reader(path) as file:
        assert torch.equal(torch.load(file, weights_only=True)["layer3"], state["layer3"])
    with checkpoint.reader(path) as file, pytest.raises(io.UnsupportedOperation):
        file.fileno()
    with checkpoint.reader(path) as file, pytest.raises(io.UnsupportedOperation, match="is for reading"):
        file.write(b"x")


def test_several_at_once(socket: str, folder: MakeFolder) -> None:
    few = folder(9)
    uris = [f"file://{name}" for name in few.names]
    files = checkpoint.readers(uris[::-1])
    assert [file.uri for file in files] == uris[::-1]
    for file in files[::2]:
        assert file.read() == few.contents[file.uri[len("file://") :]]
        file.close()
    for file in files[1::2]:
        with file:
            assert file.read(5) == few.contents[file.uri[len("file://") :]][:5]
    assert checkpoint.readers([]) == []
    with pytest.raises(FileNotFoundError, match="missing"):
        checkpoint.readers([*uris, f"file://{few.root}/missing"])


# ---- memory ----


def test_a_large_object_through_a_small_arena(socket: str, tmp_path: Path) -> None:
    slab = random.Random(2).randbytes(BLOCK)
    wanted = hashlib.sha256()
    with (tmp_path / "large").open("wb") as out:
        for i in range(200):
            part = i.to_bytes(8, "little") + slab[i:] + slab[:i]
            out.write(part)
            wanted.update(part)
    found = hashlib.sha256()
    buffer = bytearray(5 * BLOCK + 3)
    with checkpoint.reader(tmp_path / "large") as file:
        while got := file.readinto(buffer):
            found.update(memoryview(buffer)[:got])
    assert found.digest() == wanted.digest()


def test_many_readers_one_after_the_other(socket: str, large: Path, hundred: Any) -> None:
    """More than there are numbers for data sets; and none is left."""
    shared = millrace.MapDataset(hundred.uri)
    data = large.read_bytes()

    def numbers() -> set[int]:
        return {item["dataset"] for item in stat(socket)["datasets"] if item["name"] == f"reader of {large.as_uri()}"}

    def none_is_left() -> bool:
        return not stat(socket)["lanes"] and not numbers()

    for i in range(200):
        with checkpoint.reader(large) as file:
            file.seek(i * 1000)
            assert file.read(10) == data[i * 1000 : i * 1000 + 10]
            assert i or numbers()
    wait_for(none_is_left, lambda: stat(socket))
    assert len(shared[0]) > 0


def test_more_readers_than_numbers(socket: str, large: Path) -> None:
    files = []
    with pytest.raises(millrace.Error, match="64 data sets are open"):
        while True:
            files.append(checkpoint.reader(large))
    assert len(files) > 50
    for file in files:
        file.close()
    with checkpoint.reader(large) as file:
        assert len(file.read()) == file.size


def test_while_data_sets_are_read(socket: str, large: Path, hundred: Any) -> None:
    data = large.read_bytes()
    dataset = millrace.IterableDataset(hundred.uri, transform=lambda lease: (lease.name, bytes(lease)))
    with checkpoint.reader(large) as file:
        for epoch in range(3):
            for i, (name, content) in enumerate(dataset):
                assert hundred.contents[name] == content
                if i % 9 == 0:
                    offset = (i * 7 + epoch) * 10_007 % len(data)
                    file.seek(offset)
                    assert file.read(BLOCK) == data[offset : offset + BLOCK]


# ---- errors ----


def test_what_is_not_there(socket: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        checkpoint.reader(tmp_path / "nothing-here")
    with pytest.raises(FileNotFoundError, match="regular file"):
        checkpoint.reader(tmp_path)
    for wrong in ("", "gs://bucket", "gs://bucket/", "ftp://host/name", f"{tmp_path}/"):
        with pytest.raises(ValueError):
            checkpoint.reader(wrong)


@pytest.mark.parametrize(
    ("change", "error"),
    [("replace", millrace.ChangedError), ("truncate", millrace.ChangedError), ("delete", FileNotFoundError)],
)
def test_a_change_while_it_is_read(socket: str, large: Path, tmp_path: Path, change: str, error: type) -> None:
    path = tmp_path / "changing"
    path.write_bytes(large.read_bytes())
    file = checkpoint.reader(path)
    assert file.read(10) == large.read_bytes()[:10]
    if change == "replace":
        (tmp_path / "other").write_bytes(large.read_bytes()[::-1])
        (tmp_path / "other").replace(path)
    elif change == "truncate":
        os.truncate(path, 5 * BLOCK)
    else:
        path.unlink()
    file.seek(10 * BLOCK)
    with pytest.raises(error, match="changing"):
        file.read(10)
    file.close()
    if change != "delete":  # a reader of today's object reads today's
        with checkpoint.reader(path) as file:
            assert file.read() == path.read_bytes()


def test_a_closed_reader(socket: str, large: Path) -> None:
    file = checkpoint.reader(large)
    file.close()
    file.close()
    for call in (
        file.read,
        file.tell,
        lambda: file.seek(0),
        lambda: file.readinto(bytearray(1)),
        file.__enter__,
        file.getvalue,
    ):
        with pytest.raises(ValueError, match="closed"):
            call()
    with checkpoint.reader(large) as file, pytest.raises(TypeError, match="pickled"):
        pickle.dumps(file)
    with checkpoint.reader(large) as file:
        with pytest.raises(ValueError, match="before the start"):
            file.seek(-1)
        with pytest.raises(ValueError, match="whence is 3: it must be 0, 1 or 2"):
            file.seek(0, 3)
        assert (file.readable(), file.seekable(), file.writable()) == (True, True, False)


def test_a_reader_that_two_threads_close(socket: str, large: Path, tmp_path: Path) -> None:
    """Those that were opened with it go on."""
    (tmp_path / "other").write_bytes(b"other")
    one, other = readers([str(large), str(tmp_path / "other")])
    opened = one._opened
    one.close()
    one._opened = opened  # as the second thread has found it
    one.close()
    assert other.read() == b"other"
    other.close()


def test_a_forked_child_cannot_read(socket: str, large: Path) -> None:
    file = checkpoint.reader(large)
    kept = file.read(100)
    unread = checkpoint.reader(large)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for one in (file, unread):
                try:
                    one.read(10)
                except ValueError:
                    status += 10
                one.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 21
    assert kept + file.read() == large.read_bytes()
    assert unread.read(3) == kept[:3]
    file.close()
    unread.close()


@pytest.mark.random
def test_threads_take_turns(socket: str, large: Path) -> None:
    data = large.read_bytes()
    wrong: list[int] = []
    with checkpoint.reader(large) as file:

        def look(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(40):
                offset = rng.randrange(len(data))
                if file._ring.read(300_000, offset) != data[offset : offset + 300_000]:
                    wrong.append(offset)

        threads = [threading.Thread(target=look, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_threads_that_read_on(socket: str, large: Path) -> None:
    """Each byte comes to one of them."""
    pieces: list[bytes] = []
    with checkpoint.reader(large) as file:

        def read() -> None:
            while data := file.read(100_000):
                pieces.append(data)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    data = large.read_bytes()
    assert sorted(pieces) == sorted(data[at : at + 100_000] for at in range(0, len(data), 100_000))


def test_integers_of_numpy(socket: str, large: Path) -> None:
    with large.open("rb") as local, checkpoint.reader(large) as file:
        for each in (local, file):
            assert each.seek(numpy.int64(8)) == 8
        assert file.read(numpy.uint32(4)) == local.read(4)
        assert file.readline(numpy.int16(5)) == local.readline(5)
        assert (file.readinto(bytearray(3)), type(file.tell())) == (3, int)
        calls: tuple[Any, ...] = (file.seek, file.read, file.readline)
        for call in calls:
            for wrong in (1.5, "1"):
                with pytest.raises(TypeError):
                    call(wrong)
            with pytest.raises(OverflowError):
                call(1 << 64)
        with pytest.raises(OverflowError):
            file.seek((1 << 63) - 1, os.SEEK_CUR)


# ---- the store ----


@pytest.fixture
def gcs(
    tmp_path: Path, millrace_bin: Path, devstore: StartDevstore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Supervisor, str]]:
    """A supervisor over a bucket, and the address of its store."""
    (tmp_path / "root" / "bucket").mkdir(parents=True)
    (tmp_path / "root" / "bucket" / "name").write_bytes(random.Random(5).randbytes(3 * MIB + 5))
    model = {f"w{i}": torch.full((300, 400 + i), float(i)) for i in range(12)}
    torch.save(model, tmp_path / "root" / "bucket" / "model.pt")
    store = devstore("--root", tmp_path / "root")
    started = start_supervisor(
        millrace_bin, tmp_path, "", CONFIG + f'[gcs]\nendpoint = "{store.url}"\nauth = "anonymous"\n'
    )
    monkeypatch.setenv("MILLRACE_SOCKET", str(started.socket))
    yield started, store.url
    assert started.stop() == 0, started.log.read_text()


def test_an_object_that_is_replaced_in_the_store(gcs: tuple[Supervisor, str], tmp_path: Path) -> None:
    data = (tmp_path / "root" / "bucket" / "name").read_bytes()
    with checkpoint.reader("gs://bucket/name") as file:
        assert file.read() == data
    with checkpoint.reader("gs://bucket/name") as file:
        assert file.read(5) == data[:5]
        request = urllib.request.Request(f"{gcs[1]}/_devstore/touch?bucket=bucket&name=name", method="POST")
        urllib.request.urlopen(request).close()
        file.seek(3 * MIB)
        with pytest.raises(millrace.ChangedError, match="name"):
            file.read()
    with pytest.raises(FileNotFoundError, match="other"):
        checkpoint.reader("gs://bucket/other")
    with pytest.raises(FileNotFoundError):
        checkpoint.reader("gs://no-such-bucket/other")


def test_torch_load_asks_for_each_block_once(gcs: tuple[Supervisor, str], tmp_path: Path) -> None:
    """Its small reads (directory at the end, headers, pickle) come from blocks that are kept."""
    with checkpoint.reader("gs://bucket/model.pt") as file:
        torch.load(file, weights_only=True)
        blocks = -(-file.size // BLOCK)
    assert requests(gcs[1])["get"] == blocks


def test_exists_list_and_remove_in_a_bucket(gcs: tuple[Supervisor, str], tmp_path: Path) -> None:
    """The programs get the endpoint from the supervisor."""
    assert checkpoint.exists("gs://bucket/name")
    assert not checkpoint.exists("gs://bucket/nam")
    assert checkpoint.list("gs://bucket/") == ["gs://bucket/model.pt", "gs://bucket/name"]
    assert checkpoint.list("gs://bucket/run") == []
    with pytest.raises(FileNotFoundError, match="run"):
        checkpoint.remove("gs://bucket/run")
    checkpoint.remove("gs://bucket/run", recursive=True, missing_ok=True)
    checkpoint.remove("gs://bucket/name")
    assert checkpoint.list("gs://bucket/") == ["gs://bucket/model.pt"]
    with pytest.raises(FileNotFoundError, match="no-such-bucket"):
        checkpoint.list("gs://no-such-bucket/x")


def test_the_supervisor_is_gone(millrace_bin: Path, tmp_path: Path, large: Path, monkeypatch: Any) -> None:
    started = start_supervisor(millrace_bin, tmp_path, "http://127.0.0.1:9", CONFIG)
    monkeypatch.setenv("MILLRACE_SOCKET", str(started.socket))
    file, unread = checkpoint.reader(large), checkpoint.reader(large)
    assert file.read(10) == large.read_bytes()[:10]
    started.process.kill()
    started.process.wait()
    file.seek(6 * BLOCK)
    for one in (file, unread):
        with pytest.raises(millrace.SupervisorGone):
            one.read()
        one.close()
    with pytest.raises(millrace.SupervisorGone):
        checkpoint.reader(large)


class Odd(BaseHTTPRequestHandler):
    """A bucket with one object, whose store says a wrong crc32c, or never gives the bytes."""

    data = random.Random(7).randbytes(3 * MIB + 1)
    hold = threading.Event()  # until then no bytes are sent
    asked = threading.Event()
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body, status, headers = self.data, 200, {"x-goog-generation": "77"}
        if "alt=media" not in self.path:
            crc = base64.b64encode(b"\0\0\0\1").decode()
            body = json.dumps({"name": "odd", "size": str(len(self.data)), "generation": "77", "crc32c": crc}).encode()
        else:
            self.asked.set()
            self.hold.wait()
            if "Range" in self.headers:
                first, last = (int(text) for text in self.headers["Range"][len("bytes=") :].split("-"))
                body, status = self.data[first : last + 1], 206
                headers["Content-Range"] = f"bytes {first}-{last}/{len(self.data)}"
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def odd(tmp_path: Path, millrace_bin: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Odd]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    started = start_supervisor(millrace_bin, tmp_path, f"http://127.0.0.1:{server.server_port}", CONFIG)
    monkeypatch.setenv("MILLRACE_SOCKET", str(started.socket))
    Odd.hold.clear()
    Odd.asked.clear()
    yield Odd
    Odd.hold.set()
    assert started.stop() == 0, started.log.read_text()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_wrong_checksum_of_the_whole(odd: type[Odd]) -> None:
    """Each range arrives well: only the whole tells."""
    odd.hold.set()
    with checkpoint.reader("gs://bucket/odd") as file:
        assert file.generation == 77
        assert file.read(2 * MIB) == odd.data[: 2 * MIB]
        with pytest.raises(millrace.Error, match=r"gs://bucket/odd.*crc32c.*00000001"):
            file.read()
        with pytest.raises(millrace.Error, match="crc32c"):
            file.read(1)


def test_a_read_is_interrupted_by_a_signal(odd: type[Odd]) -> None:
    with checkpoint.reader("gs://bucket/odd") as file:
        interrupt = functools.partial(signal.raise_signal, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), in_its_call(lambda: file.read(0), interrupt):
            file.read(10)
        odd.hold.set()
        assert file.read(10) == odd.data[:10]


@pytest.mark.parametrize("verb", ["close", "getvalue"])
def test_a_wait_for_another_threads_read_is_interrupted(odd: type[Odd], verb: str) -> None:
    """Also in a child that the handler forks, where that thread is not."""
    file = checkpoint.reader("gs://bucket/odd")
    call = getattr(file, verb)
    children: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not call.__func__.__code__:
            frame = frame.f_back
        if frame is not None and not children:  # once: the next signal may have come by now
            signal.setitimer(signal.ITIMER_REAL, 0)
            children.append(os.fork())
            if children[0] != 0:
                raise KeyboardInterrupt

    reading = threading.Thread(target=file.read, args=(10,))
    reading.start()
    assert odd.asked.wait(DEADLINE_S)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        call()
    except KeyboardInterrupt:
        pass
    except BaseException as error:
        if children[:1] == [0]:
            os._exit(0 if "fork" in str(error) else 1)
        raise
    finally:
        if children[:1] == [0]:
            os._exit(0)  # the signal came just before the wait
        signal.signal(signal.SIGALRM, before)
        odd.hold.set()
        reading.join()
    assert file.tell() == 10
    assert os.waitpid(children[0], 0)[1] == 0
    file.close()


@pytest.mark.parametrize("verb", ["read", "close"])
def test_a_signal_handler_that_uses_the_reader_in_its_read(odd: type[Odd], verb: str) -> None:
    """It would wait for itself."""
    with checkpoint.reader("gs://bucket/odd") as file:
        act = file.close if verb == "close" else lambda: file.read(1)
        refused = pytest.raises(RuntimeError, match="a signal handler or a finaliser cannot use it")
        with refused, in_its_call(lambda: file.read(0), act):
            file.read(10)
        odd.hold.set()
        assert file.read(10) == odd.data[:10]


# ---- without a supervisor ----


def test_a_private_supervisor_serves_one_reader_after_the_other(
    millrace_bin: Path, tmp_path: Path, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_BIN", str(millrace_bin.parent))
    config = tmp_path / "c.toml"
    config.write_text(CONFIG)
    monkeypatch.setenv("MILLRACE_CONFIG", str(config))
    seen = set()
    for _ in range(3):
        with checkpoint.reader(large) as file:
            assert file._opened is not None
            seen.add(file._opened.connection.client.pid)
            assert file.read(100) == large.read_bytes()[:100]
    assert len(seen) == 1


def test_exists_list_and_remove_of_files(tmp_path: Path) -> None:
    top = tmp_path / "run"
    (top / "step1" / "parts").mkdir(parents=True)
    for name in ("step1/.metadata", "step1/parts/a", 'step1/parts/"b"\t', "step2"):
        (top / name).write_bytes(b"x")
    assert checkpoint.exists(top)
    assert checkpoint.exists(top / "step1" / ".metadata")
    assert not checkpoint.exists(top / "step")
    assert checkpoint.list(top) == [
        f"file://{top}/{name}" for name in ("step1/.metadata", 'step1/parts/"b"\t', "step1/parts/a", "step2")
    ]
    assert checkpoint.list(tmp_path / "nothing") == []
    with pytest.raises(FileNotFoundError, match="step1"):
        checkpoint.remove(top / "step1")
    with pytest.raises(FileNotFoundError, match="nothing"):
        checkpoint.remove(tmp_path / "nothing", recursive=True)
    checkpoint.remove(tmp_path / "nothing", missing_ok=True)
    checkpoint.remove(top / "step2")
    checkpoint.remove(top / "step1", recursive=True)
    assert not (top / "step1").exists()
    assert checkpoint.list(top) == []
    with pytest.raises(ValueError):
        checkpoint.remove("gs://bucket/", recursive=False)


def test_remove_stays_in_the_folder(tmp_path: Path) -> None:
    """Symbolic links to folders are removed, and nothing behind them is."""
    top, outside = tmp_path / "run", tmp_path / "outside"
    for folder in (top, outside / "empty"):
        folder.mkdir(parents=True)
    for file in (top / "a", outside / "precious"):
        file.write_bytes(b"x")
    (top / "folder").symlink_to(outside)
    (top / "file").symlink_to(outside / "precious")
    (tmp_path / "latest").symlink_to(top)
    with pytest.raises(ValueError, match=r"latest.* is a symbolic link to a folder"):
        checkpoint.remove(tmp_path / "latest", recursive=True)
    assert (top / "a").exists()
    checkpoint.remove(top, recursive=True)
    assert not top.exists()
    assert (outside / "precious").exists() and (outside / "empty").exists()
