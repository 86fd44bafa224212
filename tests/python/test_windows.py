"""Neighbours in a shard are read by one request: how many requests that is, the order and bytes as ever, and what
happens when such a request fails, its worker dies, or the loop stops in the middle."""

from __future__ import annotations

import gc
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import millrace
from tests.conftest import StartDevstore
from tests.property.order_model import BlockOrder, deal
from tests.python.shards import KEYS, Samples, plain, use, write_shards
from tests.serve import Supervisor, start_supervisor, strike, wait_for
from tests.stores import requests

SHARDS, EACH, BATCH, MIX = 3, 160, 8, 4
BLOCK = 32 << 10  # bytes
SOURCE = f"bucket/train/{{000..{SHARDS - 1:03d}}}.tar"
BLOCKS: dict[str, Any] = {"shuffle": "block", "block_bytes": BLOCK, "mix_blocks": MIX}


class Store:
    """Shards in a development store, supervisors that read them."""

    def __init__(self, program: Path, folder: Path, devstore: StartDevstore) -> None:
        self.program, self.folder, self.devstore = program, folder, devstore
        self.samples = write_shards(folder / "root" / "bucket" / "train", SHARDS, EACH, 3000)
        self.url = ""
        self.supervisors: list[Supervisor] = []

    def start(self, monkeypatch: pytest.MonkeyPatch, toml: str = "", *flags: str) -> Supervisor:
        """A store with these flags, and a supervisor over it that knows nothing yet."""
        self.url = self.devstore("--root", self.folder / "root", *flags).url
        return self.supervise(monkeypatch, self.url, toml)

    def supervise(self, monkeypatch: pytest.MonkeyPatch, url: str, toml: str) -> Supervisor:
        place = self.folder / f"supervisor-{len(self.supervisors)}"
        place.mkdir()
        if "[http]" not in toml:  # GETs are counted: none is sent again because the store is slow
            toml += "[http]\nstall_min_ms = 3600000\n"
        env = {**KEYS, "AWS_ENDPOINT_URL_S3": url, "XDG_CACHE_HOME": str(place)}
        self.supervisors.append(start_supervisor(self.program, place, url, toml, **env))
        use(self.supervisors[-1], monkeypatch)
        return self.supervisors[-1]

    def gets(self) -> int:
        return requests(self.url).get("get", 0)

    def blocks(self, ds: Any) -> int:
        """Objects of a block of the data set."""
        return int(ds._shuffle.blocks(ds._source.index())[0])


@pytest.fixture
def store(millrace_bin: Path, tmp_path: Path, devstore: StartDevstore) -> Iterator[Store]:
    made = Store(millrace_bin, tmp_path, devstore)
    yield made
    gc.collect()
    for supervisor in made.supervisors:
        assert supervisor.stop() == 0, supervisor.log.read_text()


def in_blocks(store: Store, ds: Any, epoch: int = 0) -> Samples:
    """All samples in the order of the model."""
    count = len(store.samples)
    order = BlockOrder(count, 0, epoch, bytes.fromhex(ds.digest), store.blocks(ds), MIX)
    return [store.samples[order(position)] for position in range(count)]


def keep(batch: list[millrace.Sample]) -> Samples:
    return [plain(sample) for sample in batch]


# ---- how many, and in which order ----


@pytest.mark.parametrize("scheme", ["gs", "s3"])
@pytest.mark.parametrize("fetchers", [1, 2, 4])
def test_a_block_is_a_request(store: Store, fetchers: int, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    store.start(monkeypatch, f"[fetch]\nworkers = {fetchers}\n")
    ds = millrace.IterableDataset(f"{scheme}://{SOURCE}", batch_size=BATCH, **BLOCKS)
    want, block = in_blocks(store, ds), store.blocks(ds)
    before = store.gets()
    assert list(chain.from_iterable(keep(batch) for batch in ds.batches())) == want
    # A block that crosses from one shard to the next is two; and where there are several workers, one may begin what is
    # another's, which is busy.
    wanted = -(-len(want) // block) + SHARDS - 1
    assert wanted - SHARDS <= store.gets() - before <= wanted * (1 if fetchers == 1 else 1.5)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("arguments", [{}, BLOCKS], ids=["in the order of names", "in blocks"])
def test_workers_of_a_loader(
    store: Store, workers: int, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.start(monkeypatch)
    ds = millrace.IterableDataset(f"gs://{SOURCE}", **arguments)
    loader = millrace.DataLoader(
        ds, batch_size=BATCH, num_workers=workers, collate_fn=keep, persistent_workers=workers > 0
    )
    before = store.gets() + SHARDS  # which reads the headers
    for epoch in range(2):
        got = list(chain.from_iterable(loader))
        assert got == (in_blocks(store, ds, epoch) if arguments else store.samples)
    assert store.gets() - before < len(store.samples)  # half a request a sample; one a sample would be twice as many


def test_one_after_the_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.start(monkeypatch)
    ds = millrace.IterableDataset(f"gs://{SOURCE}", batch_size=BATCH)
    assert len(ds.objects) == len(store.samples)
    before = store.gets()
    assert list(chain.from_iterable(keep(batch) for batch in ds.batches())) == store.samples
    assert store.gets() - before <= SHARDS + 3  # of less than 4 MiB each; what is not posted yet is one more


def test_a_batch_of_neighbours_of_a_map_dataset(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.start(monkeypatch)
    ds = millrace.MapDataset(f"gs://{SOURCE}")
    assert len(ds) == len(store.samples)
    before = store.gets()
    numbers = [*range(30, 50), *range(EACH - 4, EACH + 4)]
    assert [plain(sample) for sample in ds.__getitems__(numbers)] == [store.samples[n] for n in numbers]
    assert store.gets() - before <= 4  # the first may be on its way before the others are asked for


def test_the_rest_of_an_epoch_on_other_ranks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.start(monkeypatch)
    first = millrace.IterableDataset(f"gs://{SOURCE}", batch_size=BATCH, **BLOCKS)
    want, got = in_blocks(store, first), []
    for step, batch in enumerate(first.batches()):
        got += keep(batch)
        if step == 20:
            break
    state = first.state_dict()
    assert got == want[: state["cursor"]]
    for world in (1, 3):
        rest = []
        for rank in range(world):
            ds = millrace.IterableDataset(f"gs://{SOURCE}", batch_size=BATCH, rank=rank, world_size=world, **BLOCKS)
            ds.load_state_dict(state)
            rest.append([keep(batch) for batch in ds.batches()])
        for step, (shares, _) in enumerate(deal(len(want), world, BATCH, state["cursor"])):
            for rank, share in enumerate(shares):
                assert rest[rank][step] == [want[position] for position in share]


# ---- what goes wrong ----

FAULTS = ["status:first=1:503:get:*", "reset:0.3:20000:get:*", "short:0.3:9000:get:*"]


@pytest.mark.parametrize("fault", FAULTS)
def test_requests_that_break(store: Store, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store.start(monkeypatch, "[retry]\nbase_ms = 1\ncap_ms = 20\n", "--fault", fault, "--seed", "3")
    ds = millrace.IterableDataset(f"gs://{SOURCE}", batch_size=BATCH, **BLOCKS)
    want = in_blocks(store, ds)
    assert list(chain.from_iterable(keep(batch) for batch in ds.batches())) == want


class Halves(ThreadingHTTPServer):
    """Stands before a store. Once armed it sends half of each object's bytes, and the rest when it is let go."""

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url, self.armed, self.go = url, False, threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Halves)
        kept = {name: value for name, value in self.headers.items() if name.lower() == "range"}
        try:
            answer = urllib.request.urlopen(urllib.request.Request(server.url + self.path, headers=kept))
        except urllib.error.HTTPError as error:  # there is no sidecar
            answer = error
        with answer as reply:
            body = reply.read()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                if name.lower() not in ("connection", "date", "server", "transfer-encoding"):
                    self.send_header(name, value)
            self.end_headers()
        held = server.armed and "alt=media" in self.path
        self.wfile.write(body[: len(body) // 2] if held else body)
        if held:
            assert server.go.wait(60)
            self.wfile.write(body[len(body) // 2 :])

    def log_message(self, *_: object) -> None:
        pass


def test_what_has_come_is_delivered_before_the_rest(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with Halves(store.devstore("--root", store.folder / "root").url) as halves:
        threading.Thread(target=halves.serve_forever, daemon=True).start()
        patience = "[http]\nstall_timeout_ms = 3600000\nstall_min_ms = 3600000\n"
        store.supervise(monkeypatch, f"http://127.0.0.1:{halves.server_port}", patience)
        ds = millrace.IterableDataset(f"gs://{SOURCE}", batch_size=BATCH)
        assert len(ds.objects) == len(store.samples)
        halves.armed = True
        batches = iter(ds.batches())
        got = keep(next(batches))
        assert got == store.samples[:BATCH]
        halves.go.set()
        assert got + list(chain.from_iterable(keep(batch) for batch in batches)) == store.samples
        halves.shutdown()


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_sample_whose_bytes_are_others(store: Store, on_error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its neighbours in the request are not touched by it."""
    store.start(monkeypatch)
    ds = millrace.IterableDataset(f"gs://{SOURCE}", batch_size=BATCH, on_error=on_error)
    assert len(ds.objects) == len(store.samples)
    path = store.folder / "root" / "bucket" / "train" / "001.tar"
    data, bad = bytearray(path.read_bytes()), store.samples[EACH + 7]["jpg"]
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(data.index(bad) + len(bad) // 2)
        file.write(bytes([bad[len(bad) // 2] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # so the store takes it for the same version
    got: Samples = []
    if on_error == "raise":
        with pytest.raises(millrace.Error, match=r"sample .*001\.tar: the crc32c of its 3585 bytes"):
            for batch in ds.batches():
                got += keep(batch)
        assert got == store.samples[:EACH]
    else:
        assert list(chain.from_iterable(keep(batch) for batch in ds.batches())) == [
            sample for i, sample in enumerate(store.samples) if i != EACH + 7
        ]


@pytest.mark.parametrize("arguments", [{}, BLOCKS], ids=["in the order of names", "in blocks"])
def test_fetch_workers_that_are_killed(
    store: Store, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = store.start(monkeypatch, "[fetch]\nworkers = 2\n", "--download-mibps", "3")
    ds = millrace.IterableDataset(f"gs://{SOURCE}", batch_size=BATCH, **arguments)
    want = in_blocks(store, ds) if arguments else store.samples
    got: Samples = []
    kills = 0
    for step, batch in enumerate(ds.batches()):
        got += keep(batch)
        if step % 8 == 0:
            both = wait_for(lambda: len(w := supervisor.workers("fetch")) == 2 and w, "no other fetch worker came")
            kills += strike(both[step // 8 % 2])
    assert got == want and kills > 3


def test_a_loop_that_stops_in_the_middle(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way is given back, and the memory with it."""
    supervisor = store.start(monkeypatch)
    for _ in range(5):
        ds = millrace.IterableDataset(f"gs://{SOURCE}", batch_size=BATCH, **BLOCKS)
        for batch in ds.batches():
            del batch
            break
        del ds
    gc.collect()

    def is_idle() -> bool:
        stat = supervisor.stat()
        return not stat["lanes"] and all(w["counters"].get("in_flight", 0) == 0 for w in stat["workers"])

    wait_for(is_idle, supervisor.stat)
