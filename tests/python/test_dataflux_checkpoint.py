"""millrace.dataflux: the checkpoint names of gcs-torch-dataflux."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google.auth.credentials
import lightning.pytorch as pl
import pytest
import torch
from google.cloud import storage

from millrace import _supervisor, checkpoint
from millrace.dataflux import dataflux_checkpoint
from millrace.dataflux.dataflux_checkpoint import DatafluxCheckpoint
from millrace.dataflux.lightning import DatafluxLightningAsyncCheckpoint, DatafluxLightningCheckpoint
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
    with pytest.raises(FileNotFoundError):
        files.reader("some/epoch1.ckpt")
    with pytest.raises(RuntimeError, match="stop"), files.writer("some/epoch2.ckpt") as writer:
        writer.write(b"part")
        raise RuntimeError("stop")
    assert not checkpoint.exists("gs://bucket/some/epoch2.ckpt")
    assert pickle.loads(pickle.dumps(files)).bucket_name == "bucket"


def test_arguments() -> None:
    assert dataflux_checkpoint.__all__ == ["DatafluxCheckpoint"]
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


@pytest.mark.parametrize("kind", [DatafluxLightningCheckpoint, DatafluxLightningAsyncCheckpoint])
def test_lightning_plugins(emulator: Server, kind: Any) -> None:
    io = kind(project_name="p", storage_client=storage.Client(), disable_multipart=True)
    assert isinstance(io, pl.plugins.io.CheckpointIO)
    path = Path("gcs://bucket/plugin/one.ckpt")
    io.save_checkpoint(state(), path)
    io.teardown()
    assert same(io.load_checkpoint(path))
    io.remove_checkpoint(path)
    assert not checkpoint.exists("gs://bucket/plugin/one.ckpt")
    with pytest.raises(FileNotFoundError, match="no-such-bucket"):
        io.save_checkpoint(state(), "gs://no-such-bucket/a")
        io.teardown()
