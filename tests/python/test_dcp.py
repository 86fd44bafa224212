"""millrace.dcp: torch.distributed.checkpoint to devstore and to folders, by one rank and by several.

The whole file runs under the oldest torch too, and so do its neighbours test_dcp_*.py: the last test starts that.
"""

from __future__ import annotations

import dataclasses
import gc
import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint

import millrace
from millrace import checkpoint
from millrace.dcp import StorageReader, StorageWriter, _layout, _save
from tests.conftest import CALLERS_CACHE, ROOT, Server, start_devstore
from tests.python import ranks, train_ranks
from tests.python.dcp_states import IS_OLDEST, OLDEST, every_kind
from tests.python.ranks import same
from tests.serve import DEADLINE_S, Supervisor, start_supervisor
from tests.stores import create_bucket, s3_environment

dcp: Any = torch.distributed.checkpoint
CONFIG = """
[memory]
arena_bytes = "32MiB"
[checkpoint]
part_bytes = "5MiB"
arena_bytes = "40MiB"
[retry]
attempts = 3
"""

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
newer_torch = pytest.mark.newer_torch  # what 2.3.1 has not: not selected there


def start_store() -> Server:
    """A devstore with a bucket "bkt"."""
    started = start_devstore("--memory", "--no-md5")
    create_bucket(started.url, "bkt")
    return started


@pytest.fixture(scope="module")
def store() -> Iterator[Server]:
    started = start_store()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory, millrace_bin: Path, store: Server) -> Iterator[Supervisor]:
    """One for all tests of the file; its write and fetch workers start here."""
    started = start_supervisor(
        millrace_bin, tmp_path_factory.mktemp("supervisor"), store.url, CONFIG, **s3_environment(store.url)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_SOCKET", str(started.socket))
        checkpoint.writer("gs://bkt/first").close()
        checkpoint.reader("gs://bkt/first").close()
    yield started
    gc.collect()
    assert started.stop() == 0, started.log.read_text()


@pytest.fixture(autouse=True)
def _supervised(supervisor: Supervisor, store: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"STORAGE_EMULATOR_HOST": store.url, **s3_environment(store.url)}.items():
        monkeypatch.setenv(name, value)  # list() and remove() go there by themselves
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))


@pytest.fixture(params=["gs", "s3", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a test may save to."""
    return (
        str(tmp_path / "saved")
        if request.param == "file"
        else f"{request.param}://bkt/{request.node.name.replace('[', '-').rstrip(']')}"
    )


def names(uri: str) -> list[str]:
    return sorted(one.rsplit("/", 1)[1] for one in checkpoint.list(uri))


def save(state: Any, uri: Any, **options: Any) -> None:
    dcp.save(state, checkpoint_id=uri, storage_writer=StorageWriter(**options))


def load(state: Any, uri: Any) -> Any:
    dcp.load(state, checkpoint_id=uri, storage_reader=StorageReader())
    return state


def message(error: BaseException) -> str:
    return "".join(str(failure[0]) for failure in error.failures.values())  # type: ignore[attr-defined]


# ---- one rank ----


@pytest.mark.parametrize("files", [1, 3])
def test_tensors_of_every_dtype_shape_and_layout(place: str, files: int) -> None:
    save(every_kind(), place, files_per_rank=files)
    assert len(names(place)) == files + 1
    loaded = load(every_kind(blank=True), place)
    assert [name for name, value in every_kind().items() if not same(loaded[name], value)] == []


def test_other_things_than_tensors(place: str) -> None:
    class Module:
        """A Stateful, which torch 2.3.1 needs to give back what is no tensor."""

        def __init__(self, state: dict[str, Any]) -> None:
            self.state = state

        def state_dict(self) -> dict[str, Any]:
            return self.state

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state

    things = {
        "number": 5,
        "text": "x" * 100_000,
        "list": [1, 2.5, None],
        "dict": {"a": {"b": (1, 2)}},
        "bytes": b"\0\1",
    }
    save({"module": Module(things)}, place)
    module = Module({"number": 0, "text": "", "list": [0, 0.0, 0], "dict": {"a": {"b": ()}}, "bytes": b""})
    load({"module": module}, place)
    assert module.state == things


def test_torchs_own_reader_reads_it(tmp_path: Path) -> None:
    save(every_kind(), f"file://{tmp_path}/ours", files_per_rank=2)
    loaded = every_kind(blank=True)
    dcp.load(loaded, checkpoint_id=tmp_path / "ours", storage_reader=dcp.FileSystemReader(tmp_path / "ours"))
    assert same(loaded, every_kind())
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(tmp_path / "ours", tmp_path / "one.pt")
    assert same(torch.load(tmp_path / "one.pt", weights_only=not IS_OLDEST)["float32"], every_kind()["float32"])


def test_it_reads_what_torchs_own_writer_wrote(tmp_path: Path) -> None:
    for saved in (tmp_path / "path", str(tmp_path / "text")):  # newer torch puts the path as it is into .metadata
        dcp.save(every_kind(), checkpoint_id=saved, storage_writer=dcp.FileSystemWriter(saved, thread_count=2))
        assert same(load(every_kind(blank=True), saved), every_kind())


@newer_torch
def test_it_reads_what_torch_compressed(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import _extension

    class Backwards(_extension.StreamTransformExtension):
        """An extension of torch's FileSystemWriter: each item's bytes with all bits turned."""

        @staticmethod
        def registry_name() -> str:
            return "backwards"

        @staticmethod
        def from_descriptor(version: str) -> Backwards:
            return Backwards()

        def get_descriptor(self) -> str:
            return "backwards/1"

        def transform_to(self, output: Any) -> Any:
            class Out:
                def write(self, data: Any) -> int:
                    return int(output.write(bytes(255 - byte for byte in bytes(data))))

                def flush(self) -> None:
                    output.flush()

                def close(self) -> None:
                    output.close()

            return Out()

        def transform_from(self, input: Any) -> Any:
            return io.BytesIO(bytes(255 - byte for byte in input.read(-1)))

    state = {"tensor": torch.arange(50), "text": "abc"}
    writer = dcp.FileSystemWriter(tmp_path, _extensions=[Backwards()])
    dcp.save(state, checkpoint_id=tmp_path, storage_writer=writer)
    registry = _extension.ExtensionRegistry
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "from_descriptor_list", lambda self, descriptors: [Backwards() for _ in descriptors])
        assert same(load({"tensor": torch.zeros(50, dtype=torch.int64), "text": ""}, tmp_path), state)


def test_a_path_of_a_uri(tmp_path: Path) -> None:
    """torch makes Paths of what it is given, and those have one slash."""
    uri = Path("gs://bkt/as-a-path/step-1")
    assert str(uri).startswith("gs:/b")
    save({"tensor": torch.ones(3)}, uri)
    assert ".metadata" in names("gs://bkt/as-a-path/step-1")
    assert same(load({"tensor": torch.zeros(3)}, uri)["tensor"], torch.ones(3))
    for one in (str(uri), uri, tmp_path, "relative/path", "file:///tmp/x", "gs://bkt/x/", "s3://bkt/x"):
        assert StorageWriter.validate_checkpoint_id(one) and StorageReader.validate_checkpoint_id(one)
    for other in ("", "s3://", "ftp://host/x", "gs://", "/"):
        assert not StorageWriter.validate_checkpoint_id(other)


def test_the_place_may_be_given_once(place: str) -> None:
    dcp.save({"tensor": torch.ones(3)}, storage_writer=StorageWriter(place))
    loaded = {"tensor": torch.zeros(3)}
    dcp.load(loaded, storage_reader=StorageReader(place))
    assert same(loaded["tensor"], torch.ones(3))
    for call in (lambda: dcp.save(loaded, storage_writer=StorageWriter()),):
        with pytest.raises(dcp.CheckpointException, match="checkpoint_id"):
            call()
    with pytest.raises(ValueError, match="files_per_rank"):
        StorageWriter(place, files_per_rank=0)


def test_one_writer_for_ten_saves(place: str) -> None:
    writer, reader = StorageWriter(place), StorageReader()
    for number in range(10):
        dcp.save({"tensor": torch.full((5,), number)}, checkpoint_id=f"{place}/{number}", storage_writer=writer)
    for number in range(10):
        loaded = {"tensor": torch.zeros(5, dtype=torch.int64)}
        dcp.load(loaded, checkpoint_id=f"{place}/{number}", storage_reader=reader)
        assert loaded["tensor"].tolist() == [number] * 5


# ---- one that is there already ----


def test_a_checkpoint_is_replaced_as_a_whole(place: str) -> None:
    for number in range(3):
        save({"tensor": torch.full((5,), number), "other": torch.zeros(3)}, place, files_per_rank=2 if number else 3)
        assert load({"tensor": torch.zeros(5, dtype=torch.int64)}, place)["tensor"].tolist() == [number] * 5
        assert len(names(place)) == 3
    checkpoint.writer(f"{place}/notes.txt").close()
    checkpoint.writer(f"{place}/below/__0_0.distcp").close()
    save({"tensor": torch.zeros(5)}, place)
    assert len(names(place)) == 4 and "notes.txt" in names(place)  # what is not a checkpoint's stays


def test_it_replaces_one_of_torchs(tmp_path: Path) -> None:
    dcp.save({"tensor": torch.ones(3)}, checkpoint_id=tmp_path, storage_writer=dcp.FileSystemWriter(tmp_path))
    save({"tensor": torch.zeros(3)}, tmp_path)
    assert "__0_0.distcp" not in names(str(tmp_path)) and len(names(str(tmp_path))) == 2


def test_what_was_before_cannot_be_removed(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(uris: Any) -> Any:
        raise MemoryError("no process can be started")

    save({"tensor": torch.ones(3)}, place)
    monkeypatch.setattr(_save, "remove_each", refuse)
    save({"tensor": torch.zeros(3)}, place)
    assert same(load({"tensor": torch.ones(3)}, place)["tensor"], torch.zeros(3))
    assert "1 of 1 old objects are still there: no process can be started" in caplog.text


def test_overwrite_false_refuses(place: str) -> None:
    save({"tensor": torch.ones(3)}, place, overwrite=False)
    before = names(place)
    with pytest.raises(dcp.CheckpointException) as caught:
        save({"tensor": torch.zeros(3)}, place, overwrite=False)
    assert "rank 0" in message(caught.value) and "/.metadata" in message(caught.value)
    assert names(place) == before
    assert same(load({"tensor": torch.zeros(3)}, place)["tensor"], torch.ones(3))


def test_a_failed_save_leaves_the_old_one(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Planner(dcp.DefaultSavePlanner):  # type: ignore[misc]
        def resolve_data(self, item: Any) -> Any:
            if item.index.fqn == "second":
                raise ArithmeticError("lost")
            return super().resolve_data(item)

    state = {"first": torch.ones(3), "second": torch.ones(4)}
    save(state, place)
    for files in (1, 2):
        with pytest.raises(dcp.CheckpointException) as caught:
            writer = StorageWriter(files_per_rank=files)
            changed = {"first": torch.zeros(3), "second": torch.zeros(4)}
            dcp.save(changed, checkpoint_id=place, storage_writer=writer, planner=Planner())
        assert "rank 0: saving second into " in message(caught.value) and "lost" in message(caught.value)
        assert place in message(caught.value)
        assert same(load({"first": torch.zeros(3), "second": torch.zeros(4)}, place), state)
    checkpoint.writer(f"{place}/{_layout.data_name(_layout.rank_prefix(0), 7, _layout.new_save())}").close()
    save(state, place)
    assert len(names(place)) >= 3  # what a save that is under way has written would look the same
    monkeypatch.setattr(_layout, "ABANDONED_S", -10.0)
    save(state, place)  # and one a day later takes away what those have left
    assert len(names(place)) == 2


def test_ctrl_c_ends_all_objects_of_a_save(place: str) -> None:
    struck, seen = threading.Event(), []

    class Planner(dcp.DefaultSavePlanner):  # type: ignore[misc]
        def resolve_data(self, item: Any) -> Any:
            seen.append(item.index.fqn)
            time.sleep(0.05)  # a hundred times, if nothing stops it
            if len(seen) == 4:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
                assert struck.wait(DEADLINE_S)
            return super().resolve_data(item)

    def strike(*_: object) -> None:
        struck.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        with pytest.raises(dcp.CheckpointException, match="KeyboardInterrupt"):
            writer = StorageWriter(files_per_rank=2)
            state = {str(i): torch.ones(3) for i in range(200)}
            dcp.save(state, checkpoint_id=place, storage_writer=writer, planner=Planner())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(seen) < 200 and names(place) == []


class Pause(dcp.DefaultSavePlanner):  # type: ignore[misc]
    """Stops a save when it has seen what is there, and before it writes, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go = threading.Event(), threading.Event()

    def finish_plan(self, new_plan: Any) -> Any:
        self.reached.set()
        assert self.go.wait(DEADLINE_S)
        return super().finish_plan(new_plan)


def full(number: int) -> dict[str, torch.Tensor]:
    return {"tensor": torch.full((5,), number), "other": torch.full((3,), number)}


@pytest.mark.parametrize("shared", [False, True], ids=["two writers", "one writer"])
@pytest.mark.parametrize("first_ends_first", [False, True])
def test_overlapping_saves_into_one_place(place: str, shared: bool, first_ends_first: bool) -> None:
    """Each is a whole checkpoint when it ends, whatever the other has removed; the last one stays."""
    save(full(0), place)
    writers = [StorageWriter(files_per_rank=2)] * 2 if shared else [StorageWriter(files_per_rank=2) for _ in range(2)]
    planners = [Pause(), Pause()]
    with ThreadPoolExecutor(2) as pool:
        jobs = []
        for number in (0, 1):
            options = {"checkpoint_id": place, "storage_writer": writers[number], "planner": planners[number]}
            jobs.append(pool.submit(dcp.save, full(number + 1), **options))
            assert planners[number].reached.wait(DEADLINE_S)
        for number in (0, 1) if first_ends_first else (1, 0):
            planners[number].go.set()
            jobs[number].result(DEADLINE_S)
            assert same(load(full(-1), place), full(number + 1))
    assert len(names(place)) == 3


@pytest.mark.random
@pytest.mark.parametrize("shared", [False, True], ids=["writers", "one writer"])
def test_saves_that_end_at_the_same_time(place: str, shared: bool) -> None:
    """Each replaces the `.metadata` that it finds, however often that changes before its own is there."""
    one = StorageWriter()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            jobs = [
                pool.submit(dcp.save, full(n), checkpoint_id=place, storage_writer=one if shared else StorageWriter())
                for n in range(4)
            ]
            for job in jobs:
                job.result(DEADLINE_S)
            loaded = load(full(-1), place)
            assert any(same(loaded, full(n)) for n in range(4))
    if shared:
        assert len(names(place)) == 2


def test_a_save_within_another_leaves_its_objects(place: str) -> None:
    """All objects of the outer one are there, and no `.metadata` names them, when the inner one begins and ends."""

    class Late(StorageWriter):
        def finish(self, metadata: Any, results: Any) -> None:
            for number in (2, 3):
                save(full(number), place)
                assert same(load(full(-1), place), full(number))
            super().finish(metadata, results)

    save(full(0), place)
    dcp.save(full(1), checkpoint_id=place, storage_writer=Late())
    assert same(load(full(-1), place), full(1))
    assert len(names(place)) == 2


def test_one_writer_saves_into_two_places_at_once(place: str) -> None:
    writer, planners = StorageWriter(), [Pause(), Pause()]
    with ThreadPoolExecutor(2) as pool:
        jobs = []
        for number in (0, 1):
            options = {"checkpoint_id": f"{place}/{number}", "storage_writer": writer, "planner": planners[number]}
            jobs.append(pool.submit(dcp.save, full(number), **options))
            assert planners[number].reached.wait(DEADLINE_S)
        for number in (0, 1):
            planners[number].go.set()
            jobs[number].result(DEADLINE_S)
    for number in (0, 1):
        assert same(load(full(-1), f"{place}/{number}"), full(number))


def test_a_metadata_that_cannot_be_written_leaves_the_old_one(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"tensor": torch.ones(3)}, place)
    real = checkpoint.writer

    def writer(uri: Any, **options: Any) -> Any:
        if str(uri).endswith(".metadata"):
            raise PermissionError("not for you")
        return real(uri, **options)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "writer", writer)
        with pytest.raises(dcp.CheckpointException, match=r"rank 0: saving .*/\.metadata: not for you"):
            save({"tensor": torch.zeros(3)}, place)
    assert same(load({"tensor": torch.zeros(3)}, place)["tensor"], torch.ones(3))


def test_what_was_saved_again_while_it_is_loaded_is_an_error(place: str) -> None:
    """A rank that has read the old `.metadata` finds no data, rather than another save's."""

    class Planner(dcp.DefaultLoadPlanner):  # type: ignore[misc]
        def finish_plan(self, plan: Any) -> Any:
            save({"tensor": torch.zeros(3)}, place)
            return super().finish_plan(plan)

    save({"tensor": torch.ones(3)}, place)
    with pytest.raises(dcp.CheckpointException) as caught:
        dcp.load({"tensor": torch.zeros(3)}, checkpoint_id=place, storage_reader=StorageReader(), planner=Planner())
    (failure,) = (one[0] for one in caught.value.failures.values())
    assert isinstance(failure, millrace.ChangedError)
    assert "rank 0: loading " in str(failure) and ".distcp" in str(failure) and "load it again" in str(failure)


def test_a_torn_object_is_an_error(tmp_path: Path) -> None:
    save({"tensor": torch.ones(3000)}, tmp_path)
    (data,) = tmp_path.glob("*.distcp")
    whole = data.read_bytes()
    for kept in (0, 1, 500, 1000, 5000):
        data.write_bytes(whole[:kept])
        with pytest.raises(dcp.CheckpointException) as caught:
            load({"tensor": torch.zeros(3000)}, tmp_path)
        assert "rank 0: loading " in message(caught.value) and data.name in message(caught.value)


# ---- one that is not there ----


def test_no_metadata_is_said(place: str) -> None:
    with pytest.raises(dcp.CheckpointException) as caught:
        load({"tensor": torch.zeros(3)}, place)
    assert f"there is no whole checkpoint at {'file://' if place[0] == '/' else ''}{place}" in message(caught.value)
    save({"tensor": torch.ones(3)}, place)
    checkpoint.remove(f"{place}/.metadata")
    with pytest.raises(dcp.CheckpointException, match="no whole checkpoint"):
        load({"tensor": torch.zeros(3)}, place)
    with checkpoint.writer(f"{place}/.metadata") as file:
        pickle.dump({"not": "metadata"}, file)
    with pytest.raises(dcp.CheckpointException, match="holds no"):
        load({"tensor": torch.zeros(3)}, place)
    with checkpoint.writer(f"{place}/.metadata") as file:
        file.write(b"garbage")
    with pytest.raises(dcp.CheckpointException, match=r"loading .*\.metadata"):
        load({"tensor": torch.zeros(3)}, place)


@newer_torch
def test_another_shape_is_said(place: str) -> None:
    save({"tensor": torch.ones(3)}, place)
    with pytest.raises((dcp.CheckpointException, ValueError)):
        load({"tensor": torch.zeros(4)}, place)


# ---- large ones ----


def test_more_than_one_part_and_another_device_type(place: str) -> None:
    """Several parts of 5 MiB, and a target that the bytes cannot be read into."""
    state = {f"layer{i}": torch.randn(1 << 18, generator=torch.Generator().manual_seed(i)) for i in range(12)}
    save(state, place)
    loaded = {name: torch.zeros(1 << 18, dtype=torch.float64) for name in state}
    blank = {name: torch.zeros(1 << 18) for name in state}
    assert same(load(blank, place), state)
    load(loaded, place)
    assert same(loaded, {name: value.double() for name, value in state.items()})


@newer_torch
def test_a_cached_plan(place: str) -> None:
    """torch's planner may keep the plan of the first save, with what we put into it, for all others."""
    writer = StorageWriter()
    for number in range(3):
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        dcp.save({"a": torch.full((3,), number)}, checkpoint_id=place, storage_writer=writer, planner=planner)
        assert load({"a": torch.zeros(3, dtype=torch.int64)}, place)["a"].tolist() == [number] * 3
        assert len(names(place)) == 2


class AllAtOnce:
    """In place of the lock of a writer's saves: none takes it before all have come to it."""

    def __init__(self, count: int) -> None:
        self.barrier, self.lock = threading.Barrier(count), threading.RLock()

    def __enter__(self) -> None:
        self.barrier.wait(DEADLINE_S)
        self.lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self.lock.release()


@newer_torch
def test_saves_at_once_with_cached_plans(place: str) -> None:
    """torch gives one and the same Metadata to all of them."""
    writer = StorageWriter()

    def save_one(number: int) -> None:
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(full(number), checkpoint_id=f"{place}/{number}", storage_writer=writer, planner=planner)

    save_one(0)  # fills torch's cache
    writer._finishing = AllAtOnce(3)  # type: ignore[assignment]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(save_one, (1, 2, 3)))
    for number in (1, 2, 3):
        assert same(load(full(-1), f"{place}/{number}"), full(number))


# ---- what is in a checkpoint ----


def test_reading_warns_of_no_storage_class(place: str) -> None:
    """torch warns once a process of its own storage classes, which torch.save names."""
    save({"weights": torch.arange(9.0)}, place)
    torch.storage._reset_warn_typed_storage_removal()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="TypedStorage is deprecated")
        assert same(load({"weights": torch.zeros(9)}, place)["weights"], torch.arange(9.0))


class Evil:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.reduced = call, arguments

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize("within", [False, True])
def test_no_code_is_run_from_a_metadata(tmp_path: Path, within: bool) -> None:
    """Alone, and in the planner's data of metadata that are good otherwise."""
    place = str(tmp_path / "saved")
    save({"a": torch.ones(3)}, place)
    uri = f"{place}/.metadata"
    with checkpoint.reader(uri) as stream:
        metadata = pickle.loads(stream.read())
    ran = tmp_path / "ran"
    evil = Evil(os.mkdir, str(ran))
    metadata.planner_data = {"a": evil}
    with checkpoint.writer(uri) as stream:
        stream.write(pickle.dumps(metadata if within else evil, protocol=4 if within else 0))
    with pytest.raises(dcp.api.CheckpointException) as raised:
        load({"a": torch.zeros(3)}, place)
    assert not ran.exists()
    assert "posix.mkdir" in message(raised.value) and uri in message(raised.value)
    assert "docs/checkpoints.md" in message(raised.value)


@pytest.mark.parametrize("rows", [(0, 100), (5, 6), (11, 0)])
def test_a_chunk_that_is_larger_than_its_object(tmp_path: Path, rows: tuple[int, int]) -> None:
    """What follows it in the object is another tensor's."""
    place = str(tmp_path / "saved")
    save({"a": torch.ones(10, 3), "b": torch.full((200, 3), 7.0)}, place)
    uri = f"{place}/.metadata"
    with checkpoint.reader(uri) as stream:
        metadata = pickle.loads(stream.read())
    offset, length = rows
    stored = metadata.state_dict_metadata["a"]
    stored.size = torch.Size([offset + length, 3])
    stored.chunks[0] = dcp.metadata.ChunkStorageMetadata(torch.Size([0, 0]), stored.size)
    with checkpoint.writer(uri) as stream:
        stream.write(pickle.dumps(metadata))
    with pytest.raises(dcp.api.CheckpointException) as raised:
        load({"a": torch.zeros(offset + length, 3)}, place)
    assert ".metadata names a chunk of" in message(raised.value) and "(10, 3)" in message(raised.value)


@newer_torch
def test_a_class_that_the_program_trusts_is_loaded(tmp_path: Path) -> None:
    place = str(tmp_path)
    save({"a": torch.ones(3)}, place)
    uri = f"{place}/.metadata"
    with checkpoint.reader(uri) as stream:
        metadata = pickle.loads(stream.read())
    metadata.planner_data = {**metadata.planner_data, "made by": Place(1)}
    with checkpoint.writer(uri) as stream:
        pickle.dump(metadata, stream)
    with torch.serialization.safe_globals([Place]):
        assert same(load({"a": torch.zeros(3)}, place), {"a": torch.ones(3)})


@dataclasses.dataclass
class Place:
    """A planner's own class."""

    number: int


# ---- several ranks ----


@pytest.mark.parametrize(("place", "files"), [("gs", 1), ("file", 2)], indirect=["place"])
def test_four_ranks_save_two_and_three_load(place: str, files: int) -> None:
    ranks.good(4, ranks.save_sharded, place, 5, files)
    found = names(place)
    assert found[0] == ".metadata" and {name.split("_")[2] for name in found[1:]} == set("0123")
    assert all(ranks.good(2, ranks.load_sharded, place, 5))
    assert all(ranks.good(3, ranks.load_sharded, Path(place), 5))


def test_ten_asynchronous_saves_under_training() -> None:
    assert ranks.good(2, ranks.async_saves, "gs://bkt/async", 10, {}) == [[True] * 10] * 2


@newer_torch
def test_asynchronous_saves_with_asynchronous_staging() -> None:
    assert ranks.good(2, ranks.async_saves_staged, "gs://bkt/staged", 3) == [[True] * 3] * 2


def test_an_asynchronous_save_that_fails_says_so_in_its_future() -> None:
    save({"weights": torch.ones(3)}, "gs://bkt/async-fails")
    for said in ranks.good(2, ranks.async_save_fails, "gs://bkt/async-fails"):
        assert "CheckpointException" in said and "overwrite is False: gs://bkt/async-fails/.metadata" in said


@newer_torch
def test_asynchronous_saves_by_torchs_process() -> None:
    """The writer is pickled to another process, which has this job's supervisor."""
    assert ranks.good(2, ranks.async_saves_in_process, "gs://bkt/process", 3) == [[True] * 3] * 2


@newer_torch
@pytest.mark.parametrize("in_process", [False, True])
@pytest.mark.parametrize("names", ["dcp", "dataflux"])
def test_asynchronous_saves_of_sharded_tensors_that_change(names: str, in_process: bool) -> None:
    """ShardedTensors, DTensors and plain ones: torch's default stager cannot copy the first."""
    arguments = (names, f"gs://bkt/changing-{names}-{in_process}", in_process)
    for found in ranks.good(2, train_ranks.async_save_of_changing_state, *arguments):
        assert found and all(found)


@newer_torch
@pytest.mark.timeout(600)  # several launches of up to four ranks
@pytest.mark.parametrize("kind", ["plain", "dtensor", "sharded"])
@pytest.mark.parametrize(
    ("names", "world"),
    [
        pytest.param("dcp", 4, marks=pytest.mark.nightly),
        ("dataflux", 2),
        pytest.param("dataflux", 4, marks=pytest.mark.nightly),
    ],
)
def test_a_killed_job_continues(kind: str, names: str, world: int) -> None:
    """Saved by dcp.save and by dcp.async_save, killed with SIGKILL, loaded: the losses are those of a whole run."""
    base = f"gs://bkt/killed-{kind}-{names}-{world}"
    for died in ranks.run(world, train_ranks.train_until_killed, kind, names, base, 6):
        assert "ended with -9" in str(died), died
    for found in ranks.good(world, train_ranks.continue_training, kind, names, base, 9):
        assert found["sync"] == (6, [True] * 3)
        last, same_losses = found["async"]
        assert last in (4, 6) and same_losses == [True] * (9 - last)


@pytest.mark.parametrize(("place", "files"), [("gs", 2), ("file", 1)], indirect=["place"])
def test_every_rank_is_told_which_rank_failed_and_where(place: str, files: int) -> None:
    ranks.good(2, ranks.save_sharded, place, 5)
    for said in ranks.good(2, ranks.save_fails, place, 1, files):
        assert f"rank 1: saving model.rows into {'file://' if place[0] == '/' else ''}{place}/__1_" in said
        assert "ArithmeticError: lost" in said
    assert all(ranks.good(2, ranks.load_sharded, place, 5))


@newer_torch  # whose save can be of one rank among several
@pytest.mark.parametrize("place", ["gs"], indirect=True)
def test_ranks_load_of_one_save(place: str) -> None:
    for said in ranks.good(2, ranks.load_of_two_saves, place):
        assert "rank 1 read another .metadata than rank 0" in said and "load it again" in said, said


@newer_torch
def test_fsdp2() -> None:
    saved = ranks.good(4, ranks.fully_sharded, "gs://bkt/fsdp", True)[0]
    for loaded in ranks.good(2, ranks.fully_sharded, "gs://bkt/fsdp", False):
        assert same(loaded, saved)


@newer_torch
def test_without_collectives(tmp_path: Path) -> None:
    assert ranks.good(2, ranks.without_collectives, tmp_path) == [True, True]
    assert len([file for file in tmp_path.iterdir() if file.is_file()]) == 4


# ---- processes ----


def test_a_pickled_writer_finds_the_private_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "millrace.toml").write_text(CONFIG)
    environment = {"MILLRACE_SOCKET": "", "MILLRACE_CONFIG": str(tmp_path / "millrace.toml"), "LOCAL_WORLD_SIZE": "1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    writer = StorageWriter()  # it has one now
    arguments = (pickle.dumps(writer), tmp_path / "saved")
    assert writer._connection is not None
    assert ranks.good(1, ranks.save_with, *arguments, **environment) == [writer._connection.client.pid]
    monkeypatch.undo()
    del writer
    gc.collect()


@newer_torch
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="torch 2.3.1 is not there for this Python")
def test_all_of_it_with_the_oldest_torch() -> None:
    python = CALLERS_CACHE / "millrace" / f"torch-{OLDEST}" / "bin" / "python"
    assert python.exists(), f"{python} is missing: run scripts/setup nightly"
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--show-capture=no", "-m", "not newer_torch"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [python, "-m", "pytest", *options, *Path(__file__).parent.glob("test_dcp*.py")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout.splitlines()[-1] and "skipped" not in done.stdout.splitlines()[-1], done.stdout
