"""Content-Encoding: gzip: `.encoding`, decompress=True, and the drop-in, which gives what Google's client does."""

from __future__ import annotations

import contextlib
import gzip
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import google.auth.credentials
import pytest
from google.cloud import storage

import millrace
from millrace.dataflux import _known, dataflux_core
from millrace.dataflux._format import Alone
from millrace.dataflux.dataflux_iterable_dataset import DataFluxIterableDataset
from millrace.dataflux.dataflux_mapstyle_dataset import Config, DataFluxMapStyleDataset
from tests.conftest import BIN, Server, start_devstore
from tests.serve import Supervisor, start_supervisor

BUCKET = "zipped"
PLAIN = {f"some/{i}": b"%d" % i * 1000 for i in range(6)}
STORED = {name: data if name.endswith("3") else gzip.compress(data) for name, data in PLAIN.items()}
MANY = {f"many/{i:03}": b"%d" % i * 100 for i in range(400)}
LARGE = [bytes([n]) * (1 << 20) for n in range(5)]  # one member and five, with padding behind them
PACKED = {f"large/{n}": b"".join(map(gzip.compress, LARGE[:n])) + b"\0" * (3 << 20) for n in (1, 5)}
WRONG = {"wrong/cut": gzip.compress(b"x" * 1000)[:-9], "wrong/else": b"\x1f\x8bno", "wrong/plain": b"plain"}


def client(server: Server) -> storage.Client:
    credentials = google.auth.credentials.AnonymousCredentials()
    return storage.Client(project="p", credentials=credentials, client_options={"api_endpoint": server.url})


@pytest.fixture(scope="module")
def store() -> Iterator[Server]:
    server = start_devstore()
    bucket = client(server).create_bucket(BUCKET)
    many = {name: gzip.compress(data) for name, data in MANY.items()}
    for name, data in {**STORED, **PACKED, **WRONG, **many}.items():
        blob = bucket.blob(name)
        blob.content_encoding = None if data == PLAIN.get(name) else "gzip"
        blob.upload_from_string(data)
    yield server
    server.stop()


@pytest.fixture
def emulator(store: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.url)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    return store


# ---- millrace's own data sets ----


@contextlib.contextmanager
def serving(store: Server, folder: Path, patch: pytest.MonkeyPatch, compose: str) -> Iterator[Supervisor]:
    program = BIN / "millrace"
    supervisor = start_supervisor(program, folder, store.url, f'[fetch]\ncompose = "{compose}"\n')
    patch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    yield supervisor
    assert supervisor.stop() == 0


@pytest.fixture
def supervisor(store: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    with serving(store, tmp_path, monkeypatch, "never") as one:
        yield one


def test_the_encoding(supervisor: Supervisor) -> None:
    dataset = millrace.MapDataset(f"gs://{BUCKET}/some/")
    leases = dataset.__getitems__(range(6))
    assert {lease.name: bytes(lease) for lease in leases} == STORED
    want = {lease.name: "gzip" if STORED[lease.name] != PLAIN[lease.name] else "" for lease in leases}
    assert {lease.name: lease.encoding for lease in leases} == want
    assert {lease.name: lease.copy().encoding for lease in leases} == want
    assert {item.name: item.encoding for item in pickle.loads(pickle.dumps(leases))} == want
    loader = millrace.DataLoader(dataset, batch_size=3, num_workers=1)
    assert {item.name: item.encoding for batch in loader for item in batch} == want


def test_decompress_composes_nothing(store: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(store, tmp_path, monkeypatch, "always") as supervisor:
        mapped = millrace.MapDataset(f"gs://{BUCKET}/many/", decompress=True)
        assert {item.name: bytes(item) for item in mapped.__getitems__(range(len(MANY)))} == MANY
        iterated = millrace.IterableDataset(f"gs://{BUCKET}/many/", decompress=True)
        assert {item.name: bytes(item) for item in iterated} == MANY
        supervisor.wait_settled()
        assert supervisor.stat()["operations"]["composites"] == 0
        leases = millrace.MapDataset(f"gs://{BUCKET}/many/").__getitems__(range(len(MANY)))
        assert {lease.name: gzip.decompress(bytes(lease)) for lease in leases} == MANY
        assert "" in {lease.encoding for lease in leases}, "docs/python.md says that they do not know it"


def test_decompress(supervisor: Supervisor) -> None:
    uri = f"gs://{BUCKET}/some/"
    mapped = millrace.MapDataset(uri, decompress=True)
    assert {item.name: bytes(item) for item in mapped.__getitems__(range(6))} == PLAIN
    assert bytes(mapped[3]) == PLAIN["some/3"]
    iterated = millrace.IterableDataset(uri, decompress=True, transform=lambda item: (item.name, bytes(item)))
    assert dict(iterated) == PLAIN


@pytest.mark.parametrize("name", PACKED)
def test_a_small_object_that_holds_a_large_one(supervisor: Supervisor, name: str) -> None:
    """As much as is allowed, and a byte more."""
    uri, whole = f"gs://{BUCKET}/{name}", b"".join(LARGE[: int(name[-1])])
    assert bytes(millrace.MapDataset.from_objects([uri], decompress=len(whole))[0]) == whole
    words = f"{name}: its {len(PACKED[name])} bytes of gzip hold more than {len(whole) - 1} bytes"
    with pytest.raises(millrace.Error, match=words):
        millrace.MapDataset.from_objects([uri], decompress=len(whole) - 1)[0]


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_gzip_is_named(supervisor: Supervisor, name: str) -> None:
    one = millrace.MapDataset.from_objects([f"gs://{BUCKET}/{name}"], decompress=True)
    with pytest.raises(millrace.Error, match=f"{name}: its Content-Encoding is gzip, and its bytes are not"):
        one[0]
    with pytest.raises(TypeError, match="decompress"):
        millrace.MapDataset(f"gs://{BUCKET}/some/", decompress="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="decompress is 0, it must be from 1"):
        millrace.MapDataset(f"gs://{BUCKET}/some/", decompress=0)


def test_a_checkpoint_reader_says_it_too(supervisor: Supervisor) -> None:
    with millrace.checkpoint.reader(f"gs://{BUCKET}/some/1") as file:
        assert gzip.decompress(file.read()) == PLAIN["some/1"] and file.encoding == "gzip"
    with millrace.checkpoint.reader(f"gs://{BUCKET}/some/3") as file:
        assert file.read() == PLAIN["some/3"] and file.encoding == ""


# ---- the drop-in ----


def config(**fields: Any) -> Config:
    return Config(prefix="some/", **fields)


def test_the_reference_decompresses_what_it_downloads_alone(emulator: Server) -> None:
    """As Google's client; in a composed object the parts are as they are stored."""
    bucket = client(emulator).bucket(BUCKET)
    assert {name: bucket.blob(name).download_as_bytes() for name in PLAIN} == PLAIN
    plain, stored = list(PLAIN.values()), list(STORED.values())
    for fields, want in (({"disable_compose": True}, plain), ({"max_composite_object_size": 10}, plain), ({}, stored)):
        dataset = DataFluxMapStyleDataset("p", BUCKET, config(**fields))
        assert [dataset[i] for i in range(6)] == plain
        assert dataset.__getitems__(list(range(6))) == want
        assert dataset.__getitems__([4]) == plain[4:5]
        assert list(DataFluxIterableDataset("p", BUCKET, config(**fields))) == want
        steps = iter(millrace.DataLoader(cast(Any, dataset), batch_size=None))
        first = [next(steps)]
        assert dataset.__getitems__([1, 2]) == want[1:3]
        assert first + list(steps) == plain, "the loader reads each by itself, whatever was read beside it"
        dataset.objects = [*dataset.objects[4:], ("some/0", 5)]
        assert dataset.__getitems__([0, 1, 2]) == [want[4], want[5], want[0]]


def test_the_functions_of_dataflux_core(emulator: Server) -> None:
    google_client, download = client(emulator), dataflux_core.download
    assert download.download_single(google_client, BUCKET, "some/1") == PLAIN["some/1"]
    objects = [(name, len(data)) for name, data in STORED.items()]
    for limit, want in ((0, PLAIN), (1 << 20, STORED)):
        params = download.DataFluxDownloadOptimizationParams(limit)
        assert download.dataflux_download("p", BUCKET, objects, google_client, params) == list(want.values())
    six = download.dataflux_download_threaded("p", BUCKET, objects, google_client, params, threads=6)
    assert six == list(PLAIN.values())  # one for each thread
    _known.forget()


def test_an_object_that_is_not_in_the_listing(emulator: Server) -> None:
    dataset = DataFluxMapStyleDataset("p", BUCKET, Config(prefix="some/3"))
    dataset.objects = [("some/1", 5)]
    assert dataset[0] == PLAIN["some/1"]


@pytest.mark.parametrize(
    ("sizes", "limit", "threads", "alone"),
    [
        ([5, 5, 5], 100, 1, []),
        ([5, 5, 5], 100, 2, [2]),
        ([5, 200, 5, 5], 100, 1, []),  # the last of a run may take the sum over the limit
        ([200, 5, 5], 100, 1, [0]),
        ([5] * 33, 1000, 1, [32]),
        ([101, 60, 60, 60], 100, 1, [0, 3]),
        ([], 100, 1, []),
    ],
)
def test_what_the_reference_composes(sizes: list[int], limit: int, threads: int, alone: list[int]) -> None:
    objects = [(str(i), size) for i, size in enumerate(sizes)]
    asked = Alone(lambda: objects, limit, threads)
    assert [i for i in range(len(sizes)) if asked(str(i))] == alone
