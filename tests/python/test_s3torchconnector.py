"""The names of s3torchconnector: its samples, its order, its exceptions, its checkpoints."""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import os
import pickle
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.utils.data import DataLoader

import millrace
from millrace import _supervisor, checkpoint
from millrace.s3torchconnector import (
    S3Checkpoint,
    S3ClientConfig,
    S3Exception,
    S3IterableDataset,
    S3MapDataset,
    S3Reader,
    S3ReaderConstructor,
    _config,
    _dataset,
    _listed,
)
from millrace.s3torchconnector._s3client import HeadObjectResult, ObjectInfo, S3Client
from millrace.s3torchconnector.dcp import (
    BinaryPrefixStrategy,
    HexPrefixStrategy,
    RoundRobinPrefixStrategy,
    S3FileSystem,
    S3PrefixStrategyBase,
    S3StorageReader,
    S3StorageWriter,
)
from tests.conftest import start_devstore

from .shards import KEYS
from .stores import MIB, Stores, running, stores, without_supervisor

__all__ = ["running", "stores"]
REGION = "us-east-1"
Map: Any = S3MapDataset
Iter: Any = S3IterableDataset
NAMES = [f"set/img{i:02}" for i in range(10)]
CONSTRUCTORS: list[Any] = [
    S3ReaderConstructor.sequential(),
    S3ReaderConstructor.range_based(),
    S3ReaderConstructor.range_based(0),
    S3ReaderConstructor.range_based(100),
]


def data_of(name: str) -> bytes:
    return random.Random(name).randbytes(1000 + 37 * len(name) + int(name[-2:], 36))


@pytest.fixture(scope="module")
def images(running: Stores) -> str:
    for name in NAMES:
        running.put(name, data_of(name))
    running.put("settle", b"no folder of them")
    return "s3://bucket/set/"


def key_and_bytes(reader: S3Reader) -> tuple[str, bytes]:
    return reader.key, reader.read()


EVERYTHING = [(name, data_of(name)) for name in NAMES]


@pytest.mark.parametrize("constructor", CONSTRUCTORS)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_samples_in_the_same_order(stores: Stores, images: str, constructor: Any, workers: int) -> None:
    more = {"region": REGION, "transform": key_and_bytes, "reader_constructor": constructor}
    of_map = Map.from_prefix(images, **more)
    assert len(of_map) == 10
    loader = DataLoader(of_map, batch_size=4, num_workers=workers, collate_fn=list)
    assert [sample for batch in loader for sample in batch] == EVERYTHING
    whole = Iter.from_prefix(images, **more)
    assert list(whole) == EVERYTHING == list(whole)
    loader = DataLoader(whole, batch_size=4, num_workers=workers, collate_fn=list)  # each worker reads all
    assert sorted(sample for batch in loader for sample in batch) == sorted(EVERYTHING * max(workers, 1))


def test_a_prefix_is_no_folder(stores: Stores, images: str) -> None:
    found = Map.from_prefix("s3://bucket/set", region=REGION)
    assert [reader.key for reader in found] == [*NAMES, "settle"]
    assert len(Map.from_prefix("s3://bucket/none", region=REGION)) == 0
    with pytest.raises(IndexError):
        found[11]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [None, 1, 2])
def test_sharding(
    stores: Stores, images: str, monkeypatch: pytest.MonkeyPatch, ranks: int, workers: int | None
) -> None:
    """Every ranks-th object of the listing, and of those every workers-th."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: ranks)
    for rank in range(ranks):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda *_, rank=rank: rank)
        dataset = Iter.from_prefix(images, region=REGION, transform=lambda reader: reader.key, enable_sharding=True)
        for worker in range(workers or 1):
            info = None if workers is None else type("Info", (), {"id": worker, "num_workers": workers})
            monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda info=info: info)
            assert list(dataset) == NAMES[rank::ranks][worker :: workers or 1]


def test_a_list_keeps_its_order_and_repeats(stores: Stores, images: str) -> None:
    names = [NAMES[3], NAMES[1], NAMES[3]]
    uris = [f"s3://bucket/{name}" for name in names]
    with S3Checkpoint(REGION).writer("s3://second/other") as file:
        file.write(b"other")
    uris.insert(1, "s3://second/other")
    expected = [(names[0], data_of(names[0])), ("other", b"other"), *((name, data_of(name)) for name in names[1:])]
    for kind in (Map, Iter):
        dataset = kind.from_objects(uris, region=REGION, transform=key_and_bytes)
        assert list(dataset) == expected
        assert [each for batch in DataLoader(dataset, 3, collate_fn=list) for each in batch] == expected
    one = Map.from_objects(uris[0], region=REGION)
    assert len(one) == 1 and one[0].bucket == "bucket" and one[-1].read() == data_of(names[0])
    assert len(Map.from_objects([], region=REGION)) == 0


def test_an_object_that_is_missing_is_missed_alone(stores: Stores, images: str) -> None:
    uris = [f"s3://bucket/{name}" for name in (NAMES[0], "set/gone", NAMES[1])]

    def robust(reader: S3Reader) -> bytes | None:
        try:
            return reader.read()
        except S3Exception as error:
            assert isinstance(error, FileNotFoundError) and "set/gone" in str(error)
            assert "The key does not exist" in str(error)
            return None

    for kind in (Map, Iter):
        dataset = kind.from_objects(uris, region=REGION, transform=robust)
        assert list(dataset) == [data_of(NAMES[0]), None, data_of(NAMES[1])]
    stores.put("tmp/set/gone", b"x")
    listed = Iter.from_prefix("s3://bucket/tmp/", region=REGION, transform=robust)
    assert len(listed._listed) == 1
    S3Client(REGION).delete_object("bucket", "tmp/set/gone")
    assert list(listed) == [None]
    raising = Map.from_objects(uris, region=REGION, transform=key_and_bytes)
    with pytest.raises(S3Exception, match="set/gone"):
        list(DataLoader(raising, num_workers=2, collate_fn=list))
    with pytest.raises(S3Exception, match="nobucket"):
        len(Map.from_prefix("s3://nobucket/", region=REGION))


def walks_alike(reader: S3Reader, data: bytes, seed: int) -> None:
    """Against a BytesIO, whose position this never lets go behind the end."""
    model, dice = io.BytesIO(data), random.Random(seed)
    for _ in range(200):
        what, amount = dice.randrange(4), dice.choice([0, 1, 7, 99, 100, 101, 4000, len(data), len(data) + 9])
        if what == 0:
            size = dice.choice([amount, amount, -1, None])
            assert reader.read(size) == model.read(size)
        elif what == 1:
            mine, its = bytearray(amount), bytearray(amount)
            assert reader.readinto(mine) == model.readinto(its)
            assert mine == its
        else:
            whence = dice.randrange(3)
            offset = amount - (dice.randrange(len(data)) if whence else 0)
            place = [0, model.tell(), len(data)][whence] + offset
            if place < 0:
                with pytest.raises(ValueError):
                    reader.seek(offset, whence)
            else:
                assert reader.seek(offset, whence) == model.seek(min(place, len(data)))
        assert reader.tell() == model.tell()


@pytest.mark.parametrize("constructor", [*CONSTRUCTORS, S3ReaderConstructor.dcp_optimized()])
@pytest.mark.parametrize("fetched", [False, True])
def test_a_reader_is_a_file(stores: Stores, constructor: Any, fetched: bool) -> None:
    data = random.Random(0).randbytes(30_000)
    stores.put("walk/object", data)
    for seed in range(3):
        if fetched:
            source = Map.from_prefix("s3://bucket/walk/", region=REGION, reader_constructor=constructor)
            reader = source.__getitems__([0])[0]
        else:
            reader = S3Client(REGION).get_object("bucket", "walk/object", reader_constructor=constructor)
        walks_alike(reader, data, seed)
        reader.seek(10)
        copy = pickle.loads(pickle.dumps(reader))
        assert (copy.tell(), copy.read(5), copy.key) == (10, data[10:15], "walk/object")
        reader.close()
        with pytest.raises(ValueError):
            reader.read()


def test_wrong_arguments_of_a_reader(stores: Stores, images: str) -> None:
    reader = Map.from_prefix(images, region=REGION)[0]
    for wrong in ("1", 1.0):
        with pytest.raises(TypeError):
            reader.read(wrong)
        with pytest.raises(TypeError):
            reader.seek(wrong)
    for value in (b"read-only", "text"):
        with pytest.raises(TypeError):
            reader.readinto(value)
    with pytest.raises(ValueError):
        reader.seek(0, 3)
    with pytest.raises(io.UnsupportedOperation):
        reader.write(b"")
    with pytest.raises(ValueError):
        S3ReaderConstructor.dcp_optimized(-1)


def test_a_range_reader_asks_for_what_it_says(stores: Stores) -> None:
    stores.put("parts/object", random.Random(1).randbytes(MIB))
    for size, expected in ((0, [10, 10]), (1000, [1000])):
        constructor = S3ReaderConstructor.range_based(size)
        reader = Map.from_prefix("s3://bucket/parts/", region=REGION, reader_constructor=constructor)[0]
        before = len(stores.answers("parts/object"))
        assert reader.seek(0, io.SEEK_END) == MIB
        for at in (500_000, 500_300):
            reader.seek(at)
            assert len(reader.read(10)) == 10
        assert stores.answers("parts/object")[before:] == expected


def test_a_constructor_of_a_user(stores: Stores, images: str) -> None:
    class Reader(io.BytesIO):
        def __init__(self, bucket: str, key: str, get_object_info: Callable[[], Any], get_stream: Any) -> None:
            info = get_object_info()
            super().__init__(b"".join(get_stream(10, 20)) + b"|" + b"".join(get_stream(info.size - 3)))
            self.key = key

    for dataset in (
        Map.from_prefix(images, region=REGION, transform=key_and_bytes, reader_constructor=Reader),
        Iter.from_objects(f"s3://bucket/{NAMES[0]}", region=REGION, transform=key_and_bytes, reader_constructor=Reader),
    ):
        data = data_of(NAMES[0])
        assert next(iter(dataset)) == (NAMES[0], data[10:20] + b"|" + data[-3:])


def test_readers_may_be_kept(stores: Stores, images: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold no shared memory, and not more than a little of their own."""
    monkeypatch.setattr(_dataset, "KEPT_BYTES", 4000)
    dataset = Iter.from_prefix(images, region=REGION)
    readers = list(dataset)
    held = [reader._content is not None for reader in readers]
    assert held == sorted(held) and 1 < sum(held) < 5
    assert [(reader.key, reader.read()) for reader in readers] == EVERYTHING
    batches = list(DataLoader(Map.from_prefix(images, region=REGION), 4, num_workers=2, collate_fn=list))
    assert [(reader.key, reader.read()) for batch in batches for reader in batch] == EVERYTHING
    kept: list[S3Reader] = []
    list(Map.from_prefix(images, region=REGION, transform=kept.append).__getitems__(range(10)))
    assert [reader.read() for reader in kept] == [data_of(name) for name in NAMES]


def test_large_objects_are_read_as_files(stores: Stores, images: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_listed, "LARGE_BYTES", len(data_of(NAMES[4])) - 1)
    for kind in (Map, Iter):
        assert list(kind.from_prefix(images, region=REGION, transform=key_and_bytes)) == EVERYTHING
        uris = [f"s3://bucket/{name}" for name in NAMES]
        assert list(kind.from_objects(uris, region=REGION, transform=key_and_bytes)) == EVERYTHING


def test_a_subclass_with_a_getitem_of_its_own(stores: Stores, images: str) -> None:
    class Labelled(S3MapDataset):
        def __getitem__(self, i: int) -> Any:
            return i, super().__getitem__(i)

    dataset: Any = Labelled.from_prefix(images, region=REGION, transform=key_and_bytes)
    assert type(dataset).__name__ == "Labelled"
    before = stores.gets()
    assert next(iter(DataLoader(dataset, 10, collate_fn=list))) == list(enumerate(EVERYTHING))
    assert stores.gets() - before == 10
    with pytest.raises(ValueError, match="__getitem__ of its own"):
        millrace.DataLoader(dataset)


def test_the_loader_of_millrace(stores: Stores, images: str) -> None:
    more: dict[str, Any] = {"region": REGION, "transform": lambda reader: reader.key}
    of_map = millrace.DataLoader(Map.from_prefix(images, **more), batch_size=4, num_workers=2)
    assert [key for batch in of_map for key in batch] == NAMES
    loader = millrace.DataLoader(Iter.from_prefix(images, **more), batch_size=4, num_workers=2)
    batches = iter(loader)
    first = list(next(batches))
    state = loader.state_dict()
    del batches
    again = millrace.DataLoader(Iter.from_prefix(images, **more), batch_size=4)
    again.load_state_dict(state)
    assert [*first, *(key for batch in again for key in batch)] == NAMES
    with pytest.raises(ValueError, match="from_prefix"):
        millrace.DataLoader(Map.from_objects(f"s3://bucket/{NAMES[0]}", **more))


def tagged(bucket: str, key: str, get_object_info: Any, get_stream: Any) -> Any:
    """A constructor of a user's, such as of a cache by ETag."""
    reader: Any = S3ReaderConstructor.sequential()(bucket, key, get_object_info, get_stream)
    reader.info = get_object_info()
    return reader


def test_what_a_constructor_is_told(stores: Stores, images: str) -> None:
    head = S3Client(REGION).head_object("bucket", NAMES[3])
    assert head.etag and head.last_modified > 0
    more = {
        "region": REGION,
        "reader_constructor": tagged,
        "transform": lambda reader: pickle.loads(pickle.dumps(reader.info)),
    }
    for dataset in (Map.from_prefix(images, **more), Map.from_objects([f"s3://bucket/{NAMES[3]}"] * 4, **more)):
        info = dataset[3]
        assert (info.key, info.size, info.etag) == (NAMES[3], head.size, head.etag)
        assert info.last_modified == head.last_modified and isinstance(info, ObjectInfo)
    reader: Any = S3Client(REGION).get_object("bucket", NAMES[3], reader_constructor=tagged)
    info = reader.info
    assert (info.size, info.etag, info.last_modified) == (head.size, head.etag, head.last_modified)
    assert isinstance(info, HeadObjectResult)


def but_img03(reader: S3Reader) -> str:
    if reader.key.endswith("03"):
        raise LookupError(reader.key)
    return reader.key


@pytest.mark.parametrize("constructor", CONSTRUCTORS[:2])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_sample_does_not_end_the_epoch(stores: Stores, images: str, constructor: Any, workers: int) -> None:
    dataset = Iter.from_prefix(
        images, region=REGION, transform=but_img03, reader_constructor=constructor, enable_sharding=True
    )
    loader = iter(DataLoader(dataset, batch_size=None, num_workers=workers))
    found, failed = [], 0
    while True:
        try:
            found.append(next(loader))
        except StopIteration:
            break
        except LookupError:
            failed += 1
    assert failed == 1 and sorted(found) == [name for name in NAMES if not name.endswith("03")]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [Map, Iter])
def test_an_object_that_has_gone_in_the_loader_of_millrace(stores: Stores, kind: Any, workers: int) -> None:
    stores.put("went/x", b"x")
    dataset = kind.from_prefix("s3://bucket/went/", region=REGION)
    assert len(dataset.millrace) == 1
    S3Client(REGION).delete_object("bucket", "went/x")
    with pytest.raises(S3Exception, match="went/x"):
        list(millrace.DataLoader(dataset, num_workers=workers))


@pytest.mark.parametrize("wrong", ["gs://bucket/x", "bucket/x", "s3://", "s3:///x", "", None])
def test_a_uri_that_is_none(stores: Stores, wrong: Any) -> None:
    for make in (
        functools.partial(Map.from_prefix, wrong, region=REGION),
        functools.partial(Iter.from_objects, [wrong], region=REGION),
        functools.partial(S3Checkpoint(REGION).reader, wrong),
        functools.partial(S3Checkpoint(REGION).writer, wrong),
    ):
        with pytest.raises(ValueError):
            make()


def test_what_a_config_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "here")
    assert _config.settings("here", None, S3ClientConfig()) == _supervisor.NO_SETTINGS
    assert _config.settings("there", None, S3ClientConfig()) == ('[s3]\nregion = "there"\n', (), ())
    monkeypatch.setenv("AWS_PROFILE", "work")
    config = S3ClientConfig(50.0, 16 * MIB, True, True, 3, "work", True)
    settings = _config.settings("here", "http://127.0.0.1:1", config)
    assert settings.toml == (
        '[s3]\nendpoint = "http://127.0.0.1:1"\nauth = "anonymous"\naddressing = "path"\nrequester_pays = "yes"\n'
        'profile = "work"\n[fetch]\nrange_bytes = 16777216\n[checkpoint]\npart_bytes = 16777216\n'
        "[retry]\nattempts = 3\n"
    )
    assert settings.asked_by == (
        *("endpoint", "unsigned", "force_path_style", "requester_pays", "profile", "part_size", "max_attempts"),
    )
    assert "range_bytes = 262144\n[checkpoint]\npart_bytes = 5242880" in (
        _config.settings("here", None, S3ClientConfig(part_size=756)).toml
    )
    for wrong in ({"max_attempts": 0}, {"part_size": 0}, {"throughput_target_gbps": 0.0}):
        with pytest.raises(ValueError):
            _config.settings("here", None, S3ClientConfig(**wrong))
    wrong_kind: Any = "yes"
    with pytest.raises(TypeError):
        _config.settings("here", None, S3ClientConfig(unsigned=wrong_kind))


def test_two_endpoints_in_one_process(
    stores: Stores, images: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Data from one store, checkpoints to another, with a private supervisor for each."""
    without_supervisor(monkeypatch, tmp_path)
    monkeypatch.delenv("MILLRACE_CONFIG")
    (tmp_path / "root" / "bucket").mkdir(parents=True)
    other = start_devstore("--root", tmp_path / "root")
    try:
        for name, value in KEYS.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
        here: dict[str, Any] = {"region": REGION, "endpoint": stores.server.url}
        dataset = Map.from_prefix(images, transform=key_and_bytes, **here)
        saved = S3Checkpoint(REGION, endpoint=other.url)
        with saved.writer("s3://bucket/ck") as file:
            torch.save(len(dataset), file)
        assert torch.load(saved.reader("s3://bucket/ck")) == 10
        assert (tmp_path / "root" / "bucket" / "ck").exists() and not (stores.root / "bucket" / "ck").exists()
        loader = DataLoader(dataset, 5, num_workers=2, collate_fn=list)
        assert [sample for batch in loader for sample in batch] == EVERYTHING
        with pytest.raises(S3Exception):
            S3Checkpoint(**here).reader("s3://bucket/ck").read()
    finally:
        other.stop()


def test_a_checkpoint_is_whole_or_not_there(stores: Stores) -> None:
    checkpoint = S3Checkpoint(REGION)
    state = {"weights": torch.arange(5000)}
    with checkpoint.writer("s3://bucket/ck/one") as file:
        assert file.writable() and not file.readable()
        torch.save(state, file)
        assert file.tell() > 5000
    assert file.closed
    file.close()
    with pytest.raises(ValueError):
        file.write(b"more")
    with checkpoint.reader("s3://bucket/ck/one") as reader:
        assert torch.equal(torch.load(reader)["weights"], state["weights"])
    with pytest.raises(ZeroDivisionError), checkpoint.writer("s3://bucket/ck/two") as file:
        file.write(b"half")
        _ = 1 / 0
    lazy = checkpoint.reader("s3://bucket/ck/two")
    with pytest.raises(S3Exception):
        lazy.read()
    with pytest.raises(S3Exception, match="nobucket"), checkpoint.writer("s3://nobucket/x") as file:
        file.write(bytes(MIB))


def test_the_client(stores: Stores, images: str) -> None:
    client = S3Client(REGION)
    pages = list(client.list_objects("bucket", "set", max_keys=4))
    assert [len(page.object_info) for page in pages] == [4, 4, 3]
    assert [info.key for page in pages for info in page.object_info] == [*NAMES, "settle"]
    level = next(client.list_objects("bucket", "set", "/"))
    assert (level.common_prefixes, [info.key for info in level.object_info]) == (["set/"], ["settle"])
    assert client.head_object("bucket", NAMES[0]).size == len(data_of(NAMES[0]))
    for missing in ("set", "set/", "none"):
        with pytest.raises(S3Exception, match="The object was not found"):
            client.head_object("bucket", missing)
    writer = client.put_object("bucket", "direct")
    writer.write(memoryview(b"content"))
    writer.close()
    client.copy_object("bucket", "direct", "bucket", "copy")
    assert pickle.loads(pickle.dumps(client)).get_object("bucket", "copy").read() == b"content"
    for name in ("direct", "copy", "copy"):
        client.delete_object("bucket", name)
    with pytest.raises(ValueError, match="storage_class"):
        client.put_object("bucket", "x", "GLACIER")


class Custom(S3PrefixStrategyBase):
    def generate_prefix(self, rank: int) -> str:
        return f"custom/{rank}/"


@pytest.mark.parametrize(
    ("strategy", "folder"),
    [
        (None, "__0_"),
        (RoundRobinPrefixStrategy(["p1", "p2"], 3), "p1/epoch_3/__0_"),
        (HexPrefixStrategy(min_prefix_length=4), "0000/__0_"),
        (Custom(), "custom/0/"),
    ],
)
def test_a_distributed_checkpoint(stores: Stores, strategy: Any, folder: str) -> None:
    """Saved twice: of the first nothing is left, and what else lies below is not touched."""
    place = f"s3://bucket/dcp/{type(strategy).__name__}"
    kept = f"{place}/step-1/__0_0-0000000a{'0' * 12}.distcp"
    with millrace.checkpoint.writer(kept) as file:
        file.write(b"of another checkpoint, a day old")
    state: dict[str, Any] = {"a": torch.randn(100, 10), "b": torch.randn(5), "c": 3}
    for _ in range(2):
        writer = S3StorageWriter(REGION, place + "/", prefix_strategy=strategy, thread_count=2)
        dcp.save(state, storage_writer=writer)
    names = [uri[len(place) + 1 :] for uri in millrace.checkpoint.list(place)]
    assert ".metadata" in names and kept[len(place) + 1 :] in names
    data = [name for name in names if name.startswith(folder)]
    assert len(names) == 4 and [name[len(folder)] for name in data] == ["0", "1"]
    found: dict[str, Any] = {"a": torch.zeros(100, 10), "b": torch.zeros(5), "c": 0}
    dcp.load(found, storage_reader=S3StorageReader(REGION, place))
    assert torch.equal(found["a"], state["a"]) and torch.equal(found["b"], state["b"]) and found["c"] == 3
    with pytest.raises(dcp.CheckpointException, match="Checkpoint already exists"):
        dcp.save(state, storage_writer=S3StorageWriter(REGION, place, overwrite=False))


def test_prefix_strategies() -> None:
    assert [BinaryPrefixStrategy(1, 3, 4)(rank) for rank in (0, 1, 2, 3, 4)] == [
        f"{digits}/epoch_1/__{rank}_" for rank, digits in enumerate(("000", "100", "010", "110", "000"))
    ]
    assert HexPrefixStrategy(None, 1, 300)(17) == "110/__17_"
    assert HexPrefixStrategy()(5) == "0000000000/__5_"
    assert RoundRobinPrefixStrategy(["a", "b"])(3) == "b/__3_"
    for wrong in ({"min_prefix_length": 0}, {"epoch_num": "1"}, {"prefix_count": 0}):
        with pytest.raises(ValueError):
            HexPrefixStrategy(**wrong)
    with pytest.raises(ValueError):
        RoundRobinPrefixStrategy([])


def test_the_file_system(stores: Stores) -> None:
    files = S3FileSystem(REGION)
    with files.create_stream("s3://bucket/fs/a b!", "wb") as stream:
        stream.write(b"bytes")
    files.rename("s3://bucket/fs/a b!", Path("s3://bucket/fs/b"))
    files.rename("s3://bucket/fs/b", "s3://bucket/fs/b")
    assert files.exists("s3://bucket/fs/b") and not files.exists("s3://bucket/fs/a b!")
    with files.create_stream("s3://bucket/fs/b", "rb") as stream:
        assert stream.read() == b"bytes"
    files.rm_file("s3://bucket/fs/b")
    files.rm_file("s3://bucket/fs/b")
    with pytest.raises(S3Exception, match="The object was not found"):
        files.rename("s3://bucket/fs/b", "s3://bucket/fs/c")
    with pytest.raises(ValueError, match="buckets cannot be different"):
        files.rename("s3://bucket/x", "s3://other/x")
    with pytest.raises(ValueError, match="mode"), files.create_stream("s3://bucket/x", "ab"):
        pass
    assert files.concat_path("s3://bucket/x", "y") == "s3://bucket/x/y"
    assert files.validate_checkpoint_id("s3://b/x") and not files.validate_checkpoint_id("gs://b/x")


def test_streams_that_checkpoints_would_not_go_through_are_refused(stores: Stores) -> None:
    class Encrypting(S3FileSystem):
        @contextlib.contextmanager
        def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
            with super().create_stream(path, mode) as stream:
                yield stream

    for storage, use in (
        (S3StorageWriter(REGION, "s3://bucket/own"), lambda own: dcp.save({"a": torch.ones(2)}, storage_writer=own)),
        (S3StorageReader(REGION, "s3://bucket/own"), lambda own: dcp.load({"a": torch.ones(2)}, storage_reader=own)),
    ):
        storage.fs = Encrypting(REGION)
        with pytest.raises(CheckpointException, match="Encrypting with a create_stream of its own"):
            use(storage)
    assert checkpoint.list("s3://bucket/own") == []


def test_lightning(stores: Stores) -> None:
    from millrace.s3torchconnector.lightning import S3LightningCheckpoint

    plugin = S3LightningCheckpoint(REGION)
    plugin.save_checkpoint({"x": torch.ones(3)}, "s3://bucket/pl/a.ckpt")
    assert torch.equal(plugin.load_checkpoint("s3://bucket/pl/a.ckpt")["x"], torch.ones(3))
    plugin.remove_checkpoint("s3://bucket/pl/a.ckpt")
    plugin.remove_checkpoint("s3://bucket/pl/a.ckpt")
    with pytest.raises(S3Exception):
        plugin.load_checkpoint("s3://bucket/pl/a.ckpt")
    for name in ("model", "model/tokenizer.json", "parts/.metadata", "parts/__0_0.distcp", "left/a.distcp"):
        plugin.save_checkpoint({}, f"s3://bucket/pl/{name}")
    for removed in ("model", "parts", "left", "model", ""):  # a folder with other things stays: one key is removed
        plugin.remove_checkpoint(f"s3://bucket/pl/{removed}".rstrip("/"))
    assert checkpoint.list("s3://bucket/pl/") == ["s3://bucket/pl/model/tokenizer.json"]
    with pytest.raises(ValueError, match="names no object"):
        plugin.remove_checkpoint("s3://bucket")
    wrongs: list[Any] = [Path("s3://bucket/x"), None]
    for wrong in wrongs:
        with pytest.raises(TypeError, match="not a supported type"):
            plugin.save_checkpoint({}, wrong)
    with pytest.raises(ValueError):
        plugin.load_checkpoint("gs://bucket/x")


def test_the_module_that_the_sed_makes(stores: Stores) -> None:
    from millrace import s3torchconnectorclient

    assert s3torchconnectorclient.S3Exception is S3Exception
    assert os.environ["MILLRACE_SOCKET"]


def test_a_batch_needs_no_memory_for_all_of_it(stores: Stores) -> None:
    """The arena has 16 MiB."""
    for number in range(40):
        stores.put(f"big/{number:02}", bytes([number]) * MIB)
    more = {"region": REGION, "transform": lambda reader: (reader.key, len(reader.read()))}
    dataset = Map.from_prefix("s3://bucket/big/", **more)
    expected = [(f"big/{number:02}", MIB) for number in range(40)]
    assert list(DataLoader(dataset, 40, collate_fn=list)) == [expected]
    assert list(Iter.from_prefix("s3://bucket/big/", **more)) == expected
    readers = Map.from_prefix("s3://bucket/big/", region=REGION).__getitems__(range(40))
    assert [len(reader.read()) for reader in readers] == [MIB] * 40


def test_a_transform_that_reads_on(stores: Stores, images: str) -> None:
    """Others of the data set, in its thread and in another one, in the middle of a batch."""
    plain = Map.from_prefix(images, region=REGION)

    def both(reader: S3Reader) -> tuple[bytes, bytes, bytes]:
        with ThreadPoolExecutor(1) as pool:
            return reader.read(), plain[0].read(), pool.submit(lambda: plain[1].read()).result()

    dataset = Map.from_prefix(images, region=REGION, transform=both)
    plain._maps, plain._listed = dataset._maps, dataset._listed  # so that they want the same lane
    firsts = data_of(NAMES[0]), data_of(NAMES[1])
    assert dataset.__getitems__([5, 2, 2]) == [(data_of(NAMES[i]), *firsts) for i in (5, 2, 2)]


def test_threads_share_a_data_set(stores: Stores, images: str) -> None:
    dataset = Map.from_prefix(images, region=REGION, transform=key_and_bytes)
    with ThreadPoolExecutor(4) as pool:
        singles = list(pool.map(dataset.__getitem__, [*range(10)] * 5))
        batches = list(pool.map(dataset.__getitems__, [[3, 1], [9, 8, 7], [0], [2, 4, 6]] * 5))
    assert singles == EVERYTHING * 5
    assert batches == [[EVERYTHING[i] for i in batch] for batch in ([3, 1], [9, 8, 7], [0], [2, 4, 6])] * 5


def test_a_prefix_is_no_other_checkpoint(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of run/best, days ago, lies where the prefix of run begins; that of rank 1 has the prefix of rank 0."""
    began, state = time.time(), {"a": torch.randn(10)}
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: began - 3 * 86400)
        dcp.save(state, storage_writer=S3StorageWriter(REGION, "s3://bucket/run/best"))
    kept = millrace.checkpoint.list("s3://bucket/run/best")
    other = "s3://bucket/shared/x/0-" + "0" * 20 + ".distcp"
    with millrace.checkpoint.writer(other) as file:
        file.write(b"of rank 1")
    prefixes = RoundRobinPrefixStrategy(["best", "last"])
    dcp.save(state, storage_writer=S3StorageWriter(REGION, "s3://bucket/run", prefix_strategy=prefixes))
    assert set(kept) <= set(millrace.checkpoint.list("s3://bucket/run/best"))
    one = type("One", (S3PrefixStrategyBase,), {"generate_prefix": lambda self, rank: "x/"})()
    dcp.save(state, storage_writer=S3StorageWriter(REGION, "s3://bucket/shared", prefix_strategy=one))
    assert millrace.checkpoint.exists(other)


def test_objects_that_cannot_be_listed(stores: Stores, images: str) -> None:
    """One that is missing, found out by threads that come together; a key that no object has; a store that is not."""

    def robust(reader: S3Reader) -> bytes | None:
        try:
            return reader.read()
        except (S3Exception, ValueError):
            return None

    for odd in ("s3://bucket/set/gone", "s3://bucket/", "s3://a+b/x"):
        uris = [f"s3://bucket/{NAMES[0]}", odd]
        dataset = Map.from_objects(uris, region=REGION, transform=robust)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(dataset.__getitem__, [0, 1] * 8))
        assert found == [data_of(NAMES[0]), None] * 8


def test_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, millrace_bin: Path) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MILLRACE_BIN", str(millrace_bin.parent))
    monkeypatch.delenv("MILLRACE_SOCKET", raising=False)
    more = {"region": REGION, "endpoint": "http://127.0.0.1:1", "s3client_config": S3ClientConfig(max_attempts=1)}
    for dataset in (Map.from_objects("s3://b/x", **more), Map.from_prefix("s3://b/x", **more)):
        with pytest.raises(S3Exception):
            dataset[0].read()


def saves_there(uri: str, endpoint: str, writer: Any) -> None:
    with S3Checkpoint(REGION, endpoint=endpoint).writer(uri) as file:
        file.write(b"there")
    dcp.save({"a": torch.ones(3)}, storage_writer=writer)


def test_a_process_with_the_writer_of_another_store(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What it saves elsewhere goes there, and what the writer saves to the writer's."""
    without_supervisor(monkeypatch, tmp_path)
    monkeypatch.delenv("MILLRACE_CONFIG")
    (tmp_path / "root" / "bucket").mkdir(parents=True)
    other = start_devstore("--root", tmp_path / "root")
    try:
        writer = S3StorageWriter(REGION, "s3://bucket/given")
        spawned = multiprocessing.get_context("spawn").Process(
            target=saves_there, args=("s3://bucket/elsewhere", other.url, writer)
        )
        spawned.start()
        spawned.join()
        assert spawned.exitcode == 0
        assert (tmp_path / "root" / "bucket" / "elsewhere").exists()
        client = S3Client(REGION)
        assert client.head_object("bucket", "given/.metadata").size > 0
        with pytest.raises(S3Exception):
            client.head_object("bucket", "elsewhere")
    finally:
        other.stop()
