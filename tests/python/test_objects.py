"""The listing as `.objects`: a read-only sequence; and the errors of data sets that cannot be opened."""

from __future__ import annotations

import contextlib
import gc
import pickle
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import millrace
from millrace import _connection
from tests.python.conftest import Folder, MakeFolder
from tests.python.helpers import keep, name_of, refuse_a_fifth
from tests.serve import Supervisor, start_supervisor


def test_sequence(socket: str, hundred: Folder) -> None:
    objects = millrace.MapDataset(hundred.uri).objects
    want = [(name, len(data)) for name, data in hundred.contents.items()]
    assert isinstance(objects, Sequence)
    assert len(objects) == 100
    assert list(objects) == want
    assert objects[0] == want[0] and objects[-1] == want[-1] and objects[99] == want[99]
    assert objects[5:20:3] == want[5:20:3] and objects[::-1] == want[::-1] and objects[200:] == []
    assert want[7] in objects
    for bad in (100, -101):
        with pytest.raises(IndexError, match="there is no object"):
            objects[bad]
    with pytest.raises(TypeError):
        objects["a"]  # type: ignore[call-overload]


def list_of(names: Iterable[str]) -> millrace.MapDataset:
    return millrace.MapDataset.from_objects((f"file://{name}" for name in names), transform=name_of)


@pytest.mark.parametrize("workers", [0, 1])
def test_any_number_one_after_the_other(socket: str, hundred: Folder, workers: int) -> None:
    """A new list for each epoch, and one that stays."""
    kept = list_of(hundred.names[:3])
    for epoch in range(80):
        names = [hundred.names[(epoch + i) % 100] for i in range(5)]
        dataset = list_of(names)
        loaded = millrace.DataLoader(dataset, batch_size=5, num_workers=workers if epoch == 79 else 0, collate_fn=keep)
        assert list(loaded) == [sorted(names)]
        del dataset, loaded
    assert list(kept) == hundred.names[:3]


def use_all_numbers(hundred: Folder) -> None:
    """One after the other, so that what nobody has open makes room."""
    for i in range(70):
        list_of(hundred.names[i : i + 2])


def test_a_copy_that_is_passed_on_before_it_is_listed(socket: str, hundred: Folder, folder: MakeFolder) -> None:
    """It never reads the data set that was given its number."""
    few = folder(3)
    kept, at_once = list_of(hundred.names[:3]), pickle.loads(pickle.dumps(list_of(hundred.names[3:6])))
    copy, by_uri, too_late = (pickle.dumps(ds) for ds in (kept, millrace.MapDataset(few.uri), list_of(few.names[:2])))
    assert list(at_once) == hundred.names[3:6], "its number is not needed yet"
    use_all_numbers(hundred)
    assert list(at_once) == hundred.names[3:6], "it is open by itself now"
    del kept
    assert list(pickle.loads(copy)) == hundred.names[:3]
    assert [name for name, _ in pickle.loads(by_uri).objects] == few.names, "listed again"
    with pytest.raises(millrace.Error, match="of explicit objects was opened too late: keep the one that was copied"):
        pickle.loads(too_late).objects  # noqa: B018


def test_a_copy_that_two_threads_use_first(
    socket: str, supervisor: Supervisor, hundred: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened once, and so closed."""
    kept, one = list_of(hundred.names[:1]), list_of(hundred.names[:3])  # kept: with it, the connection
    digest = one.digest
    copy = pickle.loads(pickle.dumps(one))
    both = threading.Barrier(2)

    def connect(path: str, timeout_ms: int) -> Any:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        return real(path, timeout_ms)

    real = _connection.connect
    monkeypatch.setattr(_connection, "connect", connect)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(copy.__getitem__, range(2))) == hundred.names[:2]
    del copy, one
    use_all_numbers(hundred)
    assert digest not in {item["digest"] for item in supervisor.stat()["datasets"]}
    assert list(kept) == hundred.names[:1]


class Cyclic(millrace.MapDataset):
    """With a bound method as its transform, it is gone only once it is collected."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, transform=self.name_of)

    def name_of(self, sample: millrace.Lease) -> str:
        return sample.name


def test_data_sets_in_reference_cycles(socket: str, hundred: Folder) -> None:
    gc.disable()
    try:
        for i in range(70):
            assert len(Cyclic(f"file://{hundred.names[i]}")) == 1
    finally:
        gc.enable()


def test_a_copy_whose_listing_has_gone(socket: str, hundred: Folder, folder: MakeFolder) -> None:
    few = folder(3)
    ds = millrace.MapDataset(few.uri)
    assert len(ds) == 3
    pickled = pickle.dumps(ds)
    del ds
    use_all_numbers(hundred)
    assert len(pickle.loads(pickled)) == 3
    use_all_numbers(hundred)
    (few.root / "later").write_bytes(b"later")
    with pytest.raises(millrace.ChangedError, match="the listing of this copy has gone, and the objects have changed"):
        len(pickle.loads(pickled))


def test_find_and_sums(socket: str, hundred: Folder) -> None:
    objects = millrace.MapDataset(hundred.uri)._source.index()
    assert [objects.find(name) for name in hundred.names] == list(range(100))
    with pytest.raises(KeyError):
        objects.find("no such object")
    with pytest.raises(TypeError):
        objects.find(3)  # type: ignore[arg-type]
    sizes = [len(data) for data in hundred.contents.values()]
    assert (objects.total_bytes, objects.max_size) == (sum(sizes), max(sizes))
    assert "100 objects" in repr(objects)


def test_digest_is_of_the_listing(socket: str, hundred: Folder, folder: MakeFolder) -> None:
    one = millrace.IterableDataset(hundred.uri)
    assert one.digest == millrace.MapDataset(str(hundred.root) + "/").digest
    assert one.digest != millrace.MapDataset(folder(3).uri).digest
    assert len(bytes.fromhex(one.digest)) == 32


def test_explicit_objects(socket: str, hundred: Folder) -> None:
    chosen = hundred.names[10:20]
    ds = millrace.IterableDataset.from_objects([f"file://{name}" for name in reversed(chosen)], batch_size=3)
    assert [name for name, _ in ds.objects] == chosen
    assert [lease.name for batch in ds for lease in batch] == chosen
    with pytest.raises(ValueError, match="newline"):
        millrace.MapDataset.from_objects(["file:///a\nb"])


def test_several_folders(socket: str, hundred: Folder) -> None:
    ds = millrace.IterableDataset([f"file://{hundred.root}/2/", f"file://{hundred.root}/5/"])
    assert [name for name, _ in ds.objects] == [name for name in hundred.names if "/2/" in name or "/5/" in name]


def test_empty_folder(socket: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ds = millrace.IterableDataset(tmp_path / "empty", batch_size=4)
    assert len(ds) == 0 and list(ds.objects) == [] and list(ds) == []


def test_missing_folder(socket: str, tmp_path: Path) -> None:
    ds = millrace.MapDataset(f"{tmp_path}/nowhere/")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        len(ds)


def test_unknown_name(socket: str) -> None:
    with pytest.raises(ValueError, match="train"):
        millrace.IterableDataset("train")


def test_a_name_brings_the_choices_of_the_toml(
    millrace_bin: Path, tmp_path: Path, hundred: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = f"""
        [lanes]
        window = 8
        [dataset.train]
        uri = "{hundred.uri}"
        tail = "drop"
        on_error = "skip"
    """
    supervisor = start_supervisor(millrace_bin, tmp_path, "http://127.0.0.1:9", toml)
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    ds = millrace.IterableDataset("train", transform=refuse_a_fifth)
    assert [len(ds.batches(8)), len(millrace.IterableDataset("train", tail="short").batches(8))] == [12, 13]
    assert sum(len(batch) for batch in ds.batches(96)) == 77
    with pytest.raises(RuntimeError, match="a fifth"):
        list(millrace.IterableDataset("train", transform=refuse_a_fifth, on_error="raise"))
    for window, batch, want in ((None, 1, 8), (None, 8, 16), (4, 1, 4), (64, 1, 64), (4, 8, 16)):
        assert ds._source.open_lane(window, batch, None, False)[0].window == want
    del ds
    assert supervisor.stop() == 0
