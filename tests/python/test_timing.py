"""DataLoader.stats: what is named as the cause, by numbers and by causes that are planted; and millrace.measure."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import millrace
from millrace import _agree, _epochs, _timing
from millrace._ring import Meter
from tests.conftest import BIN, start_devstore
from tests.serve import start_supervisor, wait_for

MS = 1_000_000
CORES = 8


def report(workers: int = 4, cores: int = CORES, **stages: int) -> dict[str, Any]:
    """Of 20 steps, times in ms: `own` of the loop, of a worker store, transform, extent, collate, pack, idle, cpu,
    delay; how late a batch is, how long until it is sent, and how long it then takes to come; saved, in calls of
    checkpoints."""
    made = {"own": 100, "store": 1, "transform": 1, "collate": 1, "extent": 0, "pack": 0, "beside": 0}
    made |= {"idle": 10, "cpu": 2, "delay": 0, "device": 0, "late": 0, "send": 0, "way": 0, "saved": 0, **stages}
    meter = Meter(workers)
    meter.begin(3, cores, 1, (0, 0, 0), None)
    now = 10**15
    for _ in range(21):
        asked = now + made["own"] * MS
        packed = asked + made["late"] * MS - (1 if not made["late"] else 0)
        collated = packed - made["pack"] * MS
        reserved = collated - made["collate"] * MS
        fetched = reserved - made["extent"] * MS
        began = fetched - (made["store"] + made["transform"]) * MS
        waited, cpu, delay = (made[name] * MS for name in ("store", "cpu", "delay"))
        sent = packed + made["send"] * MS
        times = _timing.Times(0, began, fetched, reserved, collated, packed, sent, waited, cpu, cpu, delay)
        now = asked + (made["late"] + made["send"] + made["way"]) * MS
        meter.take(asked, now, now - made["device"] * MS if made["device"] else 0, made["saved"] * MS, times)
    found = meter.report((100, made["beside"], 0), None)
    assert found["batches"] == 20  # the first is apart
    return found


@pytest.mark.parametrize(
    ("stages", "stage", "remedy"),
    [
        ({}, None, "nothing waits"),
        ({"transform": 900, "own": 1000}, None, "nothing waits"),  # slow, but ready in time
        ({"store": 300, "late": 4}, None, "nothing waits"),
        ({"store": 300, "late": 80}, "store", "`millrace top` names"),
        ({"transform": 500, "cpu": 500, "late": 50}, "transform", "try num_workers=6"),
        ({"transform": 5000, "cpu": 5000, "late": 900}, "transform", "num_workers=8; it would take 51 workers"),
        ({"collate": 450, "cpu": 450, "late": 60}, "collate", "try num_workers=5"),
        ({"transform": 400, "cpu": 400, "late": 4, "send": 5}, "transform", "try num_workers=5"),
        ({"pack": 400, "late": 60}, "transport", "smaller batches"),
        ({"way": 60}, "transport", "smaller batches"),
        ({"extent": 400, "late": 60}, "extent", "the loop keeps batches"),
        ({"way": 60, "device": 50}, "device", "the copy to the device"),
        ({"workers": 0, "transform": 60, "late": 63}, "transform", "try num_workers=1"),
        ({"workers": 8, "transform": 900, "cpu": 300, "late": 60}, "transform", "computes 33%"),
        ({"workers": 8, "transform": 900, "cpu": 300, "delay": 600, "late": 60}, "transform", "there are 8 cores"),
        ({"workers": 16, "transform": 900, "cpu": 300, "delay": 600, "late": 60}, "transform", "16 workers share 8"),
        ({"pack": 400, "late": 60, "beside": 9}, "transport", "9 tensors did not fit the memory of batches"),
        ({"saved": 40}, "checkpoint", "wait=False"),
    ],
)
def test_the_stage_that_is_named(stages: dict[str, int], stage: str | None, remedy: str) -> None:
    found = report(**stages)
    assert found["stage"] == stage and remedy in found["verdict"], found["verdict"]


def test_the_numbers() -> None:
    found = report(store=10, transform=70, collate=20, cpu=63, late=50, way=10)
    assert found["epoch"] == 3 and found["batches"] == 20 and found["workers"] == 4
    assert found["step_s"] == pytest.approx(0.160) and found["wait_s"] == pytest.approx(0.060)
    waits = {"store": 0.005, "transform": 0.035, "collate": 0.010, "extent": 0, "transport": 0.010, "device": 0}
    assert found["waits_s"] == pytest.approx(waits)
    assert sum(found["waits_s"].values()) == pytest.approx(found["wait_s"])
    made = {"store": 0.010, "transform": 0.070, "collate": 0.020, "extent": 0, "transport": 0}
    assert found["worker_s"] == pytest.approx(made)
    assert found["worker_cpu_share"] == pytest.approx(0.7)
    assert found["verdict"] == (
        "step 160 ms, waited 60 ms (38%): transform 35 ms in 4 workers at 70% CPU; store 5, collate 10, transport 10; "
        "without waiting 100 ms; try num_workers=5"
    )


def test_the_clocks_of_quick_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read for a worker's first batch and one in 16, which stand for the others; of slow ones for each."""
    readings = iter(range(1000))
    monkeypatch.setattr(_timing, "delay_ns", lambda: 1000 * next(readings))
    monkeypatch.setattr(_timing, "QUICK_NS", 10**12)  # all are quick
    monkeypatch.setattr(_timing, "_making", _timing._Making())
    _timing._making.took = _timing.QUICK_NS  # but for the first
    lane: Any = SimpleNamespace(waited_ns=0)

    def make() -> _timing.Times:
        _timing.begin(lane)
        _timing.fetched(lane)
        return _timing.times(0, 0, 0, 0)

    made = [make() for _ in range(160)]
    assert next(readings) == 22 and made[0].delay in (999, 1000) and all(one.delay > 0 for one in made)
    monkeypatch.setattr(_timing, "QUICK_NS", 0)  # nothing is quick
    assert all(make().delay in (999, 1000) for _ in range(5))


def test_too_short_to_say() -> None:
    meter = Meter(1)
    assert meter.report((0, 0, 0), None)["verdict"] == "too few steps to say what they wait for"
    meter.take(0, 6, 0, 0, _timing.Times(0, 1, 2, 3, 4, 5, 5, 0, 0, 0, 0))
    found = meter.report((0, 0, 0), None)
    assert found["batches"] == 0 and found["first_batch_s"] == pytest.approx(6e-9)


# ---- planted ----

SLOW_S = 0.06


@contextlib.contextmanager
def reading(folder: Path, *flags: str, config: str = "") -> Iterator[None]:
    """A supervisor whose store has the bucket "quick"; it asks for one object at a time."""
    server = start_devstore("--synthetic", "quick:120:2000", *flags)
    config += '[fetch]\ncompose = "never"\nworkers = 1\nconnections = 1\n[list]\nworkers = 1\n'
    supervisor = start_supervisor(BIN / "millrace", folder, server.url, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
        list(millrace.IterableDataset("gs://quick/"))  # its workers run before a test looks which are there
        supervisor.wait_settled()
        yield
    assert supervisor.stop() == 0
    server.stop()


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with reading(tmp_path_factory.mktemp("run")):
        yield


quick = pytest.mark.usefixtures("supervisor")


def slowly(value: Any) -> Any:
    time.sleep(SLOW_S)
    return value


class Heavy:
    """Takes long to pack."""

    def __reduce__(self) -> tuple[type[Heavy], tuple[()]]:
        return slowly(Heavy), ()


def heavy(lease: Any) -> Heavy:
    return Heavy()


def first(samples: list[Any]) -> Any:
    return slowly(len(samples))


def sleeping(lease: Any) -> int:
    return len(slowly(lease))


def run(loader: Any, step_s: float = 0.0) -> dict[str, Any]:
    for _ in loader:
        time.sleep(step_s)
    found: dict[str, Any] = loader.stats()
    return found


def kinds(uri: str, **arguments: Any) -> list[Any]:
    return [millrace.MapDataset(uri, **arguments), millrace.IterableDataset(uri, **arguments)]


@quick
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [0, 1])
def test_a_slow_transform(kind: int, workers: int, caplog: pytest.LogCaptureFixture) -> None:
    dataset = kinds("gs://quick/", transform=sleeping)[kind]
    with caplog.at_level(logging.INFO, "millrace"):
        found = run(millrace.DataLoader(dataset, batch_size=8, num_workers=workers))
    assert found["stage"] == "transform" and found["batches"] == 14, found
    assert found["verdict"] in caplog.text and "epoch 0: step" in caplog.text
    assert found["workers"] == workers and found["worker_cpu_share"] < 0.5


@quick
@pytest.mark.parametrize("kind", [0, 1])
def test_a_slow_collate(kind: int) -> None:
    dataset = kinds("gs://quick/")[kind]
    assert run(millrace.DataLoader(dataset, batch_size=2, num_workers=1, collate_fn=first))["stage"] == "collate"


@quick
def test_more_loaders_than_the_supervisor_counts() -> None:
    dataset = millrace.MapDataset("gs://quick/")
    loaders = [millrace.DataLoader(dataset, batch_size=8, sampler=range(i, i + 2)) for i in range(66)]
    assert all(len(batch) == 2 for loader in loaders for batch in loader)
    assert loaders[-1].stats()["batches"] == 0  # the first is counted apart


def test_a_slow_store(tmp_path: Path) -> None:
    with reading(tmp_path, "--latency-ms", str(int(SLOW_S * 1e3))):
        dataset = millrace.IterableDataset("gs://quick/")
        found = run(millrace.DataLoader(dataset, batch_size=8, num_workers=1))
    assert found["stage"] == "store" and found["cause"] == "connections", found
    assert "all 1 connections are in use: try fetch.connections = 2" in found["verdict"]


@quick
def test_slow_pickles() -> None:
    dataset = millrace.MapDataset("gs://quick/", transform=heavy)
    found = run(millrace.DataLoader(dataset, batch_size=8, num_workers=1, collate_fn=list))
    assert found["stage"] == "transport", found
    assert found["cause"] in ("pickle", "neighbours"), found  # a busy machine's cores are said first
    assert ("smaller batches" in found["verdict"]) == (found["cause"] == "pickle"), found
    assert found["waits_s"]["transport"] >= 4 * SLOW_S


@quick
def test_a_slow_step_waits_for_nothing() -> None:
    """Each step lasts until the next batch is there: of a worker that is slow, and still ready in time."""
    dataset = millrace.MapDataset("gs://quick/", transform=sleeping)
    loader = millrace.DataLoader(dataset, batch_size=8, num_workers=1)
    iterator: Any = iter(loader)
    queue = iterator._batches._worker_result_queue
    for left in reversed(range(len(loader))):
        next(iterator)
        if left:
            wait_for(lambda: not queue.empty(), "no batch comes")
    found: dict[str, Any] = loader.stats()
    assert [found["waits_s"][stage] for stage in ("store", "transform", "collate")] == [0, 0, 0], found
    assert found["stage"] in (None, "transport"), found  # a busy machine is slow to take what is there
    assert found["worker_s"]["transform"] >= 8 * SLOW_S


@quick
def test_single_samples_and_a_loader_that_was_not_used() -> None:
    loader = millrace.DataLoader(millrace.IterableDataset("gs://quick/"), batch_size=None, num_workers=1)
    with pytest.raises(ValueError, match="no iteration of this loader has begun: there is nothing to report"):
        loader.stats()
    assert run(loader)["batches"] == 119
    iterator = iter(loader)
    next(iterator)
    assert loader.stats()["epoch"] == 1 and loader.stats()["batches"] == 0


def test_what_is_timed_can_be_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils import pin_memory

    monkeypatch.setattr(pin_memory, "pin_memory", lambda batch: [*batch, "pinned"])
    timed = _timing.Timed([1], _timing.Times(0, 1, 2, 2, 3, 4, 4, 0, 0, 0, 0))
    assert timed.pin_memory().batch == [1, "pinned"]


def test_what_is_timed_notes_when_it_is_sent() -> None:
    """By the thread that pickles it: torch's queue has one, which waits for the GIL first."""
    timed = _timing.Timed([1], _timing.Times(0, 1, 2, 2, 3, 4, 4, 0, 0, 0, 0))
    before = time.monotonic_ns()
    came = pickle.loads(pickle.dumps(timed))
    assert before <= came.times.sent <= time.monotonic_ns() and came.times._replace(sent=4) == timed.times


# ---- measure ----


@quick
def test_measure(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = millrace.IterableDataset("gs://quick/", transform=sleeping)
    loader = millrace.DataLoader(dataset, batch_size=4)
    next(iter(loader))
    state = loader.state_dict()
    found = millrace.measure(loader, lambda batch: time.sleep(SLOW_S), 5)
    assert loader.state_dict() == state
    with pytest.raises(ZeroDivisionError):
        millrace.measure(loader, lambda batch: 1 // 0, 5)
    assert loader.state_dict() == state
    assert found["batches"] == 5 and found["loader_ms"] >= 4 * SLOW_S * 1e3 and found["step_ms"] >= SLOW_S * 1e3
    assert found["both_ms"] >= 5 * SLOW_S * 1e3 and found["wait_ms"] > 0 and found["first_ms"] > 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == ["loader, empty loop", "step, one kept batch"] + [
        "loader and step",
        "waited",
    ]


def test_measure_of_any_loader(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []
    assert millrace.measure([1, 2, 3], seen.append)["batches"] == 3
    assert seen == [3, 3, 2, 3]  # the first of a run is not counted
    assert "ms a batch" in capsys.readouterr().out
    with pytest.raises(ValueError, match="gave 1 batches: two are the least to measure"):
        millrace.measure([1], seen.append)
    with pytest.raises(ValueError, match="batches"):
        millrace.measure([1, 2], seen.append, 1)
    millrace.measure([1, 2], seen.append, show=False)
    assert capsys.readouterr().out == ""


# ---- what is told when an epoch ends (millrace/_epochs.py) ----


def test_the_iteration_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`before` is that of the same data set, also of another loader that was not read to its end; and of an earlier
    run, where log.epochs has it."""
    file = tmp_path / "epochs.jsonl"
    _epochs._last.clear()
    with reading(tmp_path, config=f"[log]\nepochs = '{file}'\n"), caplog.at_level(logging.INFO, "millrace"):
        dataset = millrace.MapDataset("gs://quick/", transform=sleeping)
        first = millrace.DataLoader(dataset, batch_size=8)
        assert run(first)["before"] is None
        assert first.stats()["stage"] == "transform" and first.stats()["slowest"] is None
        del first
        gc.collect()
        second = millrace.DataLoader(dataset, batch_size=8, num_workers=2)
        found = run(second)
        assert found["before"]["workers"] == 0 and found["before"]["stage"] == "transform"
        assert found["before"]["step_s"] >= 8 * SLOW_S
        assert "; with num_workers=0 a step took " in caplog.text
        third = iter(second)
        next(third)
        next(third)
        next(third)
        assert second.stats()["before"]["workers"] == 2 and second.stats()["epoch"] == 1
        del third
        again = millrace.DataLoader(millrace.MapDataset("gs://quick/"), batch_size=60)
        assert run(again)["before"]["epoch"] == 1 and again.stats()["before"]["batches"] == 2
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert {(row["rank"], row["world"], row["dataset"], row["epoch"]) for row in rows} == {(0, 1, "gs://quick/", 0)}
        assert [row["workers"] for row in rows] == [0, 2, 0] and rows[1]["verdict"] in caplog.text
        _epochs._last.clear()  # as in another process
        file.write_text("{no JSON\n[1]\n" + file.read_text())
        assert run(millrace.DataLoader(dataset, batch_size=60))["before"]["workers"] == 0


def test_a_file_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with reading(tmp_path, config="[log]\nepochs = '/proc/none/epochs.jsonl'\n"):
        loader = millrace.DataLoader(millrace.MapDataset("gs://quick/"), batch_size=8)
        for _ in range(2):
            run(loader)
    assert caplog.text.count("log.epochs: cannot write to /proc/none/epochs.jsonl: No such file") == 1


class Store(dict[str, str]):
    """torch.distributed's, as far as it is used."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key]


def told(store: Store, rank: int, wait_share: float, stage: str | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One rank of three ends an epoch."""
    monkeypatch.setattr(_agree, "store", lambda: store)
    monkeypatch.setattr(_epochs, "_loaders", {})  # each of them is a process
    monkeypatch.setattr(socket, "gethostname", lambda: f"host-{rank}")
    found: dict[str, Any] = {
        "epoch": 4,
        "batches": 9,
        "workers": 1,
        "step_s": 1.0,
        "wait_s": wait_share,
        "wait_share": wait_share,
    }
    found |= {"stage": stage, "cause": "blocked" if stage else None, "verdict": "a; b; try num_workers=7"}
    meter: Any = SimpleNamespace(report=lambda: found, begin=lambda *_: None, epochs="")
    epochs = _epochs.Epochs(meter, lambda: "gs://ranks/\udcff")
    epochs.begin(4, rank, 3)
    epochs.end()
    return epochs.slowest


def test_the_slowest_rank(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The first rank says which one; without the others it does not wait for long, and says so."""
    monkeypatch.setattr(_epochs, "GATHER_S", 0.01)
    store = Store()
    with caplog.at_level(logging.INFO, "millrace"):
        assert told(store, 2, 0.5, "transform", monkeypatch) is None
        assert told(store, 1, 0.02, None, monkeypatch) is None
        slowest = told(store, 0, 0.04, None, monkeypatch)
        assert (slowest["rank"], slowest["host"], slowest["cause"]) == (2, "host-2", "blocked")
        expected = (
            "epoch 4: the slowest of 3 ranks is rank 2 on host-2, for its transform (blocked): it waited 50% of the "
            "time, the others 3%; try num_workers=7"
        )
        assert expected in caplog.text
        store["millrace/epoch"] = ""
        for key in [key for key in store if key.endswith("/1")]:
            store[key] = store[key].replace('"epoch": 4', '"epoch": 3')  # it is an epoch behind
        told(store, 0, 0.04, None, monkeypatch)
        assert "rank 2 on host-2" in caplog.text and "the others 4%; 1 have not said" in caplog.text


def test_what_is_no_file(tmp_path: Path) -> None:
    """Nothing waits for a pipe that nobody reads, and its content is somebody's."""
    os.mkfifo(tmp_path / "pipe")
    with reading(tmp_path, config=f"[log]\nepochs = '{tmp_path}/pipe'\n"):
        assert run(millrace.DataLoader(millrace.MapDataset("gs://quick/"), batch_size=8))["batches"] == 14


def test_the_end_of_a_process_with_a_loader() -> None:
    """A loader that lives to the end of the interpreter, whose modules are empty by then: not a word."""
    program = (
        "import torch, millrace\nfrom types import SimpleNamespace\nfrom millrace import _epochs\n"
        "meter = SimpleNamespace(report=lambda: {'batches': 0}, begin=lambda *_: None, epochs='')\n"
        "kept = _epochs.Epochs(meter, lambda: 'x')\nkept.begin(0, 0, 1)\ntorch.kept = kept\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_copy_measures_for_itself() -> None:
    meter = _timing.LoopMeter(0, _no_client, _nothing)
    meter.begin(0, 0, 1)
    other = pickle.loads(pickle.dumps(meter))
    with pytest.raises(ValueError, match="no iteration of this loader has begun"):
        other.report()
    other.begin(1, 0, 1)
    assert (meter.report()["epoch"], other.report()["epoch"]) == (0, 1)


def _no_client() -> Any:
    raise millrace.Error("none")


def _nothing() -> tuple[int, int, int]:
    return 0, 0, 0


def test_a_store_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(Store):
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("connection reset")

    assert told(Gone(), 0, 0.5, "store", monkeypatch) is None
