"""millrace.dataflux: the checkpoint names of gcs-torch-dataflux."""

from __future__ import annotations

import contextlib
import gc
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google.auth.credentials
import lightning.pytorch as pl
import pytest
import torch
import torch.distributed.checkpoint as dcp
from google.api_core.exceptions import Forbidden, NotFound
from google.cloud import storage

from millrace import _supervisor, checkpoint
from millrace.dataflux import _storage, dataflux_checkpoint
from millrace.dataflux.dataflux_checkpoint import DatafluxCheckpoint, DatafluxCheckpointBuffer
from millrace.dataflux.lightning import (
    DatafluxLightningAsyncCheckpoint,
    DatafluxLightningCheckpoint,
    GCSDistributedReader,
    GCSDistributedWriter,
    GCSFileSystem,
    path_utils,
)
from tests.conftest import Server, start_devstore
from tests.serve import Supervisor, start_supervisor

CONFIG = """
[memory]
arena_bytes = "16MiB"
[checkpoint]
arena_bytes = "40MiB"
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("store")
    (root / "bucket").mkdir()
    server = start_devstore("--root", root)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def supervisor(store: Server, tmp_path_factory: pytest.TempPathFactory, millrace_bin: Path) -> Iterator[Supervisor]:
    started = start_supervisor(millrace_bin, tmp_path_factory.mktemp("supervisor"), store.url, CONFIG)
    with pytest.MonkeyPatch.context() as patch:  # the first use starts the workers, which stay
        patch.setenv("MILLRACE_SOCKET", str(started.socket))
        with checkpoint.writer("gs://bucket/first") as file:
            file.write(b"first")
        with checkpoint.reader("gs://bucket/first") as first:
            assert first.read() == b"first"
    yield started
    gc.collect()
    assert started.stop() == 0, started.log.read_text()


@pytest.fixture
def emulator(store: Server, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.url)
    return store


@pytest.fixture(autouse=True)
def _no_client_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_supervisor, "_preferred", _supervisor.NO_SETTINGS)


def state() -> dict[str, Any]:
    return {"w": torch.arange(1000.0), "n": 3}


def same(found: dict[str, Any]) -> bool:
    return bool(torch.equal(found["w"], state()["w"])) and found["n"] == 3


def test_writer_and_reader(emulator: Server) -> None:
    files: Any = DatafluxCheckpoint(project_name="p", bucket_name="bucket")
    with files.writer("some/epoch0 #1.ckpt") as writer:
        torch.save(state(), writer)
    with files.reader("some/epoch0 #1.ckpt") as reader:
        assert same(torch.load(reader))
    assert checkpoint.list("gs://bucket/some") == ["gs://bucket/some/epoch0 #1.ckpt"]
    with files.reader("some/epoch0 #1.ckpt") as reader:
        assert bytes(reader.getbuffer()) == reader.getvalue() == reader.read()
    for missing in (FileNotFoundError, NotFound):
        with pytest.raises(missing, match="epoch1"):
            files.reader("some/epoch1.ckpt")
    with pytest.raises(RuntimeError, match="stop"), files.writer("some/epoch2.ckpt") as writer:
        writer.write(b"part")
        raise RuntimeError("stop")
    assert not checkpoint.exists("gs://bucket/some/epoch2.ckpt")
    assert pickle.loads(pickle.dumps(files)).bucket_name == "bucket"


def test_arguments() -> None:
    assert dataflux_checkpoint.__all__ == ["DatafluxCheckpoint", "DatafluxCheckpointBuffer"]
    with pytest.raises(ValueError, match="the bucket's name alone"):
        DatafluxCheckpoint("p", "gs://bucket")
    with pytest.raises(TypeError, match="storage_client"):
        DatafluxCheckpoint("p", "bucket", storage_client="a client")
    with pytest.raises(TypeError, match="storage_client"):
        DatafluxLightningCheckpoint("p", storage_client="a client")


def test_a_client_s_endpoint(store: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client alone says where the store is: to the writer, the reader, and what lists and removes."""
    client = storage.Client(
        project="p",
        credentials=google.auth.credentials.AnonymousCredentials(),
        client_options={"api_endpoint": store.url},
    )
    files: Any = DatafluxCheckpoint("p", "bucket", storage_client=client)
    with files.writer("by-client/1") as writer:
        torch.save(state(), writer)
    with files.reader("by-client/1") as reader:
        assert same(torch.load(reader))
    assert checkpoint.exists("gs://bucket/by-client/1")
    io = DatafluxLightningCheckpoint("p", storage_client=client)
    io.remove_checkpoint("gs://bucket/by-client/1")
    assert checkpoint.list("gs://bucket/by-client") == []
    other = storage.Client(
        project="p",
        credentials=google.auth.credentials.AnonymousCredentials(),
        client_options={"api_endpoint": "http://127.0.0.1:9"},
    )
    with pytest.raises(ValueError, match="storage_client"):
        DatafluxCheckpoint("p", "bucket", storage_client=other).reader("by-client/1")


def test_a_buffer_that_is_never_closed_says_so(emulator: Server) -> None:
    ckpt = DatafluxCheckpoint(project_name="p", bucket_name="bucket")
    file: Any = DatafluxCheckpointBuffer(ckpt.bucket.blob("dropped"))
    file.write(b"x")
    with pytest.warns(ResourceWarning, match="gs://bucket/dropped was never closed: nothing has been saved"):
        del file
        gc.collect()
    del ckpt
    assert not checkpoint.exists("gs://bucket/dropped")


@pytest.mark.parametrize("kind", [DatafluxLightningCheckpoint, DatafluxLightningAsyncCheckpoint])
def test_lightning_plugins(emulator: Server, kind: Any) -> None:
    io = kind(project_name="p", storage_client=storage.Client(project="p"), disable_multipart=True)
    assert isinstance(io, pl.plugins.io.CheckpointIO)
    path = Path("gcs://bucket/plugin/one.ckpt")
    io.save_checkpoint(state(), path)
    io.teardown()
    assert same(io.load_checkpoint(path))
    io.remove_checkpoint(path)
    assert not checkpoint.exists("gs://bucket/plugin/one.ckpt")
    io.save_checkpoint(state(), "gs://bucket/plugin/beside")
    io.teardown()
    with pytest.raises(FileNotFoundError):
        io.remove_checkpoint("gs://bucket/plugin")
    assert checkpoint.exists("gs://bucket/plugin/beside"), "the reference's deletes one object"
    for missing in (FileNotFoundError, NotFound):
        with pytest.raises(missing, match=r"plugin/one\.ckpt"):
            io.remove_checkpoint(path)
        with pytest.raises(missing, match=r"plugin/one\.ckpt"):
            io.load_checkpoint(path)
    io.save_checkpoint(state(), path, storage_options={"any": "thing"})  # as there: it changes nothing
    io.teardown()
    assert same(io.load_checkpoint(str(path).replace(":/", "://")))
    inner = getattr(io, "checkpoint_io", io)
    assert inner.storage_client.project == "p" and inner.disable_multipart
    assert pickle.loads(pickle.dumps(inner)).project_name == "p"
    with pytest.raises(FileNotFoundError, match="no-such-bucket"):
        io.save_checkpoint(state(), "gs://no-such-bucket/a")
        io.teardown()


def test_a_writer_raises_google_s_errors(emulator: Server) -> None:
    """Where the bytes are written, at the close, and where torch hides them behind an error of its own."""
    ckpt = DatafluxCheckpoint(project_name="p", bucket_name="no-such-bucket")
    for missing in (FileNotFoundError, NotFound):
        with pytest.raises(missing, match="no-such-bucket"), ckpt.writer("a") as file:
            file.write(b"x")
        with pytest.raises(missing, match="no-such-bucket"), ckpt.writer("a") as file:
            torch.save({"large": torch.zeros(24 << 20, dtype=torch.uint8)}, file)
        with pytest.raises(missing, match="no-such-bucket"):
            DatafluxCheckpointBuffer(ckpt.bucket.blob("a")).close()


def test_a_removal_comes_after_the_saves_before_it(emulator: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    save, goes_on = DatafluxLightningCheckpoint.save_checkpoint, threading.Event()

    def slow(self: Any, *args: Any, **kwargs: Any) -> None:
        goes_on.wait()
        save(self, *args, **kwargs)

    monkeypatch.setattr(DatafluxLightningCheckpoint, "save_checkpoint", slow)
    io, path = DatafluxLightningAsyncCheckpoint("p"), "gs://bucket/slow/one.ckpt"
    io.save_checkpoint(state(), path)
    io.remove_checkpoint(path)
    io.save_checkpoint(state(), "gs://bucket/slow/two.ckpt")
    threading.Timer(0.1, goes_on.set).start()
    assert same(io.load_checkpoint("gs://bucket/slow/two.ckpt"))
    io.teardown()
    assert not checkpoint.exists(path)
    io.save_checkpoint(state(), "gs://no-such-bucket/three.ckpt")
    io.remove_checkpoint("gs://bucket/slow/two.ckpt")
    with pytest.raises(FileNotFoundError, match="no-such-bucket"):
        io.teardown()
    assert checkpoint.exists("gs://bucket/slow/two.ckpt")


def test_a_client_and_a_bucket(emulator: Server) -> None:
    """What was given, or one of the project; the next client's settings count once it is assigned."""
    given = storage.Client(project="p")
    assert DatafluxCheckpoint("p", "bucket", given).storage_client is given
    files = DatafluxCheckpoint("other", "bucket")
    assert files.storage_client.project == "other"
    with files.writer("with-a-client") as writer:
        writer.write(b"abc")
    assert files.bucket.blob("with-a-client").download_as_bytes() == b"abc"
    files.storage_client = given
    assert files.bucket.client is given
    with pytest.raises(TypeError, match="storage_client"):
        files.storage_client = "a client"


def test_a_buffer_that_seeks(emulator: Server) -> None:
    blob = DatafluxCheckpoint("p", "bucket").bucket.blob("buffered")
    with DatafluxCheckpointBuffer(blob) as file:
        file.write(b"....tail")
        file.seek(0)
        file.write(b"head")
        assert file.getvalue() == b"headtail" and not checkpoint.exists("gs://bucket/buffered")
    file.close()
    assert blob.download_as_bytes() == b"headtail"
    blob.delete()
    with pytest.raises(RuntimeError, match="stop"), DatafluxCheckpointBuffer(blob) as file:
        file.write(b"part")
        raise RuntimeError("stop")
    DatafluxCheckpointBuffer(blob).write(b"never closed")
    gc.collect()
    assert not blob.exists()
    lost = DatafluxCheckpointBuffer(storage.Client().bucket("no-such-bucket").blob("a"))
    with pytest.raises(FileNotFoundError):
        lost.close()
    assert lost.closed


def test_a_buffer_whose_bytes_are_refused(emulator: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def write(self, data: Any) -> None:
            raise PermissionError("no")

    monkeypatch.setattr(_storage, "writer", lambda uri: contextlib.nullcontext(Refusing()))
    buffer = DatafluxCheckpointBuffer(DatafluxCheckpoint("p", "bucket").bucket.blob("refused"))
    buffer.write(b"bytes")
    with pytest.raises(PermissionError, match="no"):
        buffer.close()
    assert buffer.closed


REFUSED = [
    "bucket/a.ckpt",
    "/a.ckpt",
    "file:///a.ckpt",
    Path("/a.ckpt"),
    Path("file:///a.ckpt"),
    Path("a"),
    "",
]


@pytest.mark.parametrize("path", REFUSED)
def test_a_path_that_names_no_bucket(path: Any, emulator: Server, tmp_path: Path, monkeypatch: Any) -> None:
    """Nothing is written to this machine by mistake."""
    monkeypatch.chdir(tmp_path)
    io = DatafluxLightningCheckpoint("p")
    uses = (lambda: io.save_checkpoint(state(), path), lambda: io.load_checkpoint(path))
    for use in (*uses, lambda: io.remove_checkpoint(path), lambda: GCSFileSystem("p", False).rm_file(path)):
        with pytest.raises(ValueError, match="gs://"):
            use()
    writer, reader = GCSDistributedWriter(path, "p"), GCSDistributedReader(path, "p")
    with pytest.raises(dcp.api.CheckpointException, match="begins with gs://"):
        dcp.save(state(), storage_writer=writer)
    with pytest.raises(dcp.api.CheckpointException, match="begins with gs://"):
        dcp.load(state(), storage_reader=reader)
    assert not list(tmp_path.iterdir())


def test_paths() -> None:
    expected = ("bucket", "folder/a.ckpt")
    for text in ("gs://bucket/folder/a.ckpt", "gcs://bucket/folder/a.ckpt"):
        assert path_utils.parse_gcs_path(text) == path_utils.parse_gcs_path(Path(text)) == expected
        assert path_utils.process_input_path(text) == path_utils.process_input_path(Path(text)) == text
    assert path_utils.parse_gcs_path("gs://bucket") == ("bucket", "")
    with pytest.raises(ValueError, match="names no bucket: write gs://bucket/name"):
        path_utils.parse_gcs_path("gs:///a")
    with pytest.raises(ValueError, match="a checkpoint's path is empty: write gs://bucket/name"):
        path_utils.parse_gcs_path("")
    with pytest.raises(TypeError, match="a checkpoint's path is a str or a Path, not int"):
        path_utils.parse_gcs_path(3)  # type: ignore[arg-type]


def test_a_file_system(emulator: Server) -> None:
    """Users' strategies take that of a reader for what lies beside the shards."""
    fs = GCSDistributedReader("gs://bucket/fs", "p").fs
    assert isinstance(fs, GCSFileSystem) and fs.storage_client.project == "p"
    path = fs.concat_path(fs.init_path("gs://bucket/fs"), "meta.pt")
    assert path == Path("gs://bucket/fs/meta.pt") and not fs.exists(path)
    fs.mkdir(path.parent)
    with fs.create_stream(path=path, mode="wb") as stream:
        torch.save(state(), stream)
    with fs.create_stream(path=path, mode="rb") as stream:
        assert same(torch.load(stream))
    assert fs.exists(path) and not fs.exists("gs://bucket/fs")
    with pytest.raises(RuntimeError, match="stop"), fs.create_stream(path, "wb") as stream:
        stream.write(b"part")
        raise RuntimeError("stop")
    fs.rename(path, "gs://bucket/fs/new.pt")
    fs.rename("gs://bucket/fs/new.pt", "gs://bucket/fs/new.pt")
    with fs.create_stream("gs://bucket/fs/new.pt", "rb") as stream:
        assert same(torch.load(stream))
    assert checkpoint.list("gs://bucket/fs") == ["gs://bucket/fs/new.pt"]
    for missing in (FileNotFoundError, NotFound):
        with pytest.raises(missing, match=r"meta\.pt"):
            fs.rm_file(path)
        with pytest.raises(missing, match=r"meta\.pt"), fs.create_stream(path, "rb"):
            pass
    fs.rm_file("gs://bucket/fs/new.pt")
    with pytest.raises(ValueError, match="an object is renamed within its bucket"):
        fs.rename(path, "gs://other/fs/meta.pt")
    with pytest.raises(ValueError, match="a stream is opened by 'rb' or 'wb'"), fs.create_stream(path, "r"):
        pass
    assert GCSDistributedWriter.validate_checkpoint_id("gcs://bucket/a") and fs.validate_checkpoint_id(Path("a"))
    with pytest.raises(ValueError, match="gs://"):
        GCSDistributedReader.validate_checkpoint_id("a")


def test_arguments_of_torchs_writer(emulator: Server) -> None:
    base = Path("gcs://bucket/options")
    writer = GCSDistributedWriter(base, "p", thread_count=2, overwrite=False, sync_files=True)
    assert (writer.path, writer.thread_count, writer.overwrite, writer.sync_files) == (base, 2, False, False)
    dcp.save({"a": torch.ones(3), "b": torch.ones(4)}, checkpoint_id=base, storage_writer=writer)
    assert len(checkpoint.list("gs://bucket/options")) == 3
    with pytest.raises(dcp.api.CheckpointException, match="FileExistsError"):
        dcp.save(state(), storage_writer=writer)
    loaded = {"a": torch.zeros(3), "b": torch.zeros(4)}
    dcp.load(loaded, storage_reader=GCSDistributedReader(base, "p", None, True))
    assert torch.equal(loaded["a"], torch.ones(3)) and torch.equal(loaded["b"], torch.ones(4))
    with pytest.raises(TypeError, match="no_such"):
        GCSDistributedWriter(base, "p", no_such=1)
    safetensors = dcp.filesystem.SerializationFormat.SAFETENSORS
    alone = "it writes torch.save's format, and reads it alone"
    with pytest.raises(ValueError, match=f"GCSDistributedWriter has no serialization_format: {alone}"):
        GCSDistributedWriter(base, "p", serialization_format=safetensors)
    with pytest.raises(ValueError, match="GCSDistributedReader has no _extension_registry"):
        GCSDistributedReader(base, "p", _extension_registry=object())


@pytest.mark.parametrize("method", ["save_checkpoint", "load_checkpoint", "remove_checkpoint"])
@pytest.mark.parametrize("kind", [FileNotFoundError, PermissionError])
def test_the_fsdp_strategy_raises_google_s_errors(
    method: str, kind: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    strategies = pytest.importorskip("millrace.dataflux.lightning.strategies")

    def fails(*_: Any) -> None:
        raise kind("gs://bucket/a")

    monkeypatch.setattr(strategies.FSDPStrategy, method, fails)
    strategy = object.__new__(strategies.DatafluxFSDPStrategy)
    monkeypatch.setattr(strategies.DatafluxFSDPStrategy, "broadcast", lambda self, value: value)
    arguments: list[Any] = [{}] if method == "save_checkpoint" else []
    google_s = NotFound if kind is FileNotFoundError else Forbidden
    with pytest.raises(google_s) as raised:
        getattr(strategy, method)(*arguments, "gs://bucket/a")
    assert isinstance(raised.value, kind)
