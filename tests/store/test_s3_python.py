"""Data sets and checkpoints of s3:// from Python, over a supervisor with versitygw or moto behind it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millrace
from millrace import checkpoint
from tests.serve import Supervisor, start_supervisor
from tests.store.s3_servers import S3

MIB = 1 << 20
CONFIG = """
[memory]
arena_bytes = "64MiB"
[fetch]
range_threshold_bytes = "4MiB"
range_bytes = "1MiB"
[checkpoint]
workers = 2
part_bytes = "5MiB"
arena_bytes = "20MiB"
[retry]
attempts = 4
"""
OBJECTS = {f"train/{i % 5}/object {i:04}": random.Random(i).randbytes(i * 37 % 5000) for i in range(300)}


@pytest.fixture(scope="module")
def supervisor(s3: S3, tmp_path_factory: pytest.TempPathFactory, millrace_bin: Path) -> Iterator[Supervisor]:
    s3.put("data", OBJECTS)
    s3.put("data", {"large/one": random.Random(1).randbytes(9 * MIB + 3), "large/two": b""})
    s3.put("checkpoints", {})
    folder = tmp_path_factory.mktemp("run")
    started = start_supervisor(millrace_bin, folder, "http://127.0.0.1:9", CONFIG, **s3.environment)
    with pytest.MonkeyPatch.context() as patch:  # its workers run before a test looks which are there
        patch.setenv("MILLRACE_SOCKET", str(started.socket))
        list(millrace.IterableDataset("s3://data/large/"))  # larger objects later would start them again
        for name in ("warm/1", "warm/2"):
            with checkpoint.writer(f"s3://checkpoints/{name}") as file:
                file.write(b"x")
    started.wait_settled()
    yield started
    assert started.stop() == 0


@pytest.fixture(autouse=True)
def _surroundings(s3: S3, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    for name, value in s3.environment.items():  # of what runs beside the supervisor: list, exists, remove
        monkeypatch.setenv(name, value)


def test_an_epoch() -> None:
    dataset = millrace.IterableDataset("s3://data/train/", shuffle=True, seed=3)
    assert len(dataset.objects) == len(OBJECTS)
    read = {lease.name: bytes(lease) for lease in dataset}
    assert read == OBJECTS
    again = millrace.IterableDataset("s3://data/train/")
    assert again.digest == dataset.digest


def test_ranges_and_a_map() -> None:
    objects = millrace.MapDataset("s3://data/large/")
    assert [len(objects[i]) for i in range(2)] == [9 * MIB + 3, 0]
    assert (
        hashlib.sha256(bytes(objects[0])).digest() == hashlib.sha256(random.Random(1).randbytes(9 * MIB + 3)).digest()
    )
    chosen = ["s3://data/train/1/object 0001", "s3://data/large/two"]
    named = millrace.MapDataset.from_objects(chosen)
    assert sorted(name for name, _ in named.objects) == ["large/two", "train/1/object 0001"]


def test_an_object_that_is_replaced(s3: S3) -> None:
    s3.put("data", {"changing/a": b"before"})
    dataset = millrace.IterableDataset("s3://data/changing/")
    assert len(dataset.objects) == 1
    s3.put("data", {"changing/a": b"behind"})
    with pytest.raises(millrace.ChangedError, match="changed since the listing"):
        list(dataset)
    s3.client().delete_object(Bucket="data", Key="changing/a")
    with pytest.raises(FileNotFoundError, match="deleted since the listing"):
        list(dataset)


@pytest.mark.parametrize("size", [0, 1000, 5 * MIB, 23 * MIB + 7])
def test_a_checkpoint(s3: S3, size: int) -> None:
    data, uri = random.Random(size).randbytes(size), f"s3://checkpoints/run/{size}.pt"
    with checkpoint.writer(uri) as file:
        file.write(data)
    assert s3.get("checkpoints", f"run/{size}.pt") == data
    with checkpoint.reader(uri) as file:
        assert file.read() == data
    with checkpoint.writer(uri) as file:  # what is there is replaced
        file.write(data[::-1])
    assert s3.get("checkpoints", f"run/{size}.pt") == data[::-1]
    assert unfinished(s3) == []


def test_nothing_of_one_that_fails(s3: S3) -> None:
    def write() -> None:
        with checkpoint.writer("s3://checkpoints/failed.pt") as file:
            file.write(bytes(12 * MIB))
            raise RuntimeError("the training fails")

    with pytest.raises(RuntimeError, match="the training fails"):
        write()
    assert "failed.pt" not in s3.names("checkpoints")
    assert unfinished(s3) == []


def test_if_absent(s3: S3) -> None:
    for name, size in (("small", 100), ("large", 12 * MIB)):
        uri = f"s3://checkpoints/once-{name}"
        with checkpoint.writer(uri, if_absent=True) as file:
            file.write(bytes(size))
        with pytest.raises(FileExistsError), checkpoint.writer(uri, if_absent=True) as file:
            file.write(b"other")


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_dcp_and_lightning(s3: S3) -> None:
    import torch
    import torch.distributed.checkpoint as torch_dcp

    from millrace import dcp, lightning

    saved: dict[str, Any] = {"w": torch.arange(300_000, dtype=torch.float32), "step": 7}
    into: dict[str, Any] = {"w": torch.zeros(300_000), "step": 0}
    of_torch: Any = torch_dcp
    of_torch.save(saved, checkpoint_id="s3://checkpoints/dcp", storage_writer=dcp.StorageWriter())
    of_torch.load(into, checkpoint_id="s3://checkpoints/dcp", storage_reader=dcp.StorageReader())
    assert into["step"] == 7 and torch.equal(into["w"], saved["w"])
    assert "dcp/.metadata" in s3.names("checkpoints")
    plugin = lightning.CheckpointIO()
    path = Path("s3://checkpoints/lightning/one.ckpt")
    plugin.save_checkpoint(saved, path)
    assert torch.equal(plugin.load_checkpoint(path)["w"], saved["w"])
    assert "lightning/one.ckpt" in s3.names("checkpoints")
    plugin.remove_checkpoint(path)
    assert "lightning/one.ckpt" not in s3.names("checkpoints")
    assert unfinished(s3) == []


def test_names_of_objects(s3: S3) -> None:
    s3.put("checkpoints", {"list/a": b"1", "list/b/c": b"2"})
    assert list(checkpoint.list("s3://checkpoints/list/")) == ["s3://checkpoints/list/a", "s3://checkpoints/list/b/c"]
    assert checkpoint.exists("s3://checkpoints/list/a")
    checkpoint.remove("s3://checkpoints/list/", recursive=True)
    assert not checkpoint.exists("s3://checkpoints/list")
    with pytest.raises(ValueError, match="names no bucket: write s3://bucket/name"):
        checkpoint.writer("s3:///name")
    with pytest.raises(ValueError, match="use gs://, s3://, file:// or a path"):
        checkpoint.writer("ftp://a/b")


def test_a_bucket_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
        len(millrace.IterableDataset("s3://no-such-bucket/").objects)


def unfinished(s3: S3) -> list[Any]:
    return list(s3.client().list_multipart_uploads(Bucket="checkpoints").get("Uploads", []))
