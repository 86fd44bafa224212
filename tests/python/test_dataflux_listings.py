"""millrace.dataflux lists when a data set is made: what ranks, workers and copies then share, and when it ends."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data

import millrace
from millrace.dataflux import _known, dataflux_core
from millrace.dataflux.dataflux_iterable_dataset import DataFluxIterableDataset
from millrace.dataflux.dataflux_mapstyle_dataset import Config, DataFluxMapStyleDataset
from tests import stores
from tests.conftest import Server, start_devstore
from tests.serve import start_supervisor, wait_for

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

BUCKET = "bucket"
Kind = Any
KINDS = [DataFluxMapStyleDataset, DataFluxIterableDataset]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("store")
    (root / BUCKET).mkdir()
    server = start_devstore("--root", root)
    yield server
    server.stop()


@dataclass
class Prefix:
    """Objects of the bucket that come and go."""

    url: str
    name: str

    def put(self, name: str) -> None:
        stores.put(self.url, BUCKET, f"{self.name}/{name}", name.encode())

    def delete(self, name: str) -> None:
        stores.delete(self.url, BUCKET, f"{self.name}/{name}")


@pytest.fixture
def changing(store: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Prefix:
    """With the objects 1 and 2."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.url)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))  # not the credentials of whoever runs the tests
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    prefix = Prefix(store.url, f"changing-{next(_numbers)}")
    prefix.put("1")
    prefix.put("2")
    return prefix


def of(kind: Kind, prefix: Prefix) -> Any:
    return kind("project", BUCKET, Config(prefix=f"{prefix.name}/"))


def names_of(objects: Any) -> list[str]:
    return [name.rpartition("/")[2] for name, _ in objects]


@pytest.mark.parametrize("kind", KINDS)
def test_each_lists_what_is_there_when_it_is_made(changing: Prefix, kind: Kind) -> None:
    first = of(kind, changing)
    changing.put("3")
    changing.delete("1")
    second = of(kind, changing)
    assert names_of(first.objects) == ["1", "2"] and names_of(second.objects) == ["2", "3"]
    assert list(second) == [b"2", b"3"]
    copied = [copy.deepcopy(second), pickle.loads(pickle.dumps(second))]
    changing.put("4")
    for each in [second, *copied]:
        assert list(each) == [b"2", b"3"]
    assert names_of(of(kind, changing).objects) == ["2", "3", "4"]


def test_dataflux_core_lists_each_time(changing: Prefix) -> None:
    def run() -> list[str]:
        return names_of(
            dataflux_core.fast_list.ListingController(2, "p", BUCKET, True, prefix=f"{changing.name}/").run()
        )

    try:
        assert run() == ["1", "2"]
        for number in range(3, 30):
            changing.put(f"{number}")
            assert len(run()) == number
        assert len(_known._listings) == 1  # an older one is out of date
    finally:
        _known.forget()


@pytest.mark.parametrize("context", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", KINDS)
def test_workers_read_the_listing_of_their_data_set(changing: Prefix, kind: Kind, context: str) -> None:
    """Not a newer one, and not that of the data set that their process would be the first to make."""
    of(kind, changing)
    changing.put("3")
    ds = of(kind, changing)
    changing.put("4")
    newer = of(kind, changing)
    loader = torch.utils.data.DataLoader(ds, batch_size=None, num_workers=2, multiprocessing_context=context)
    assert sorted(loader) == [b"1", b"2", b"3"]
    assert sorted(millrace.DataLoader(ds, batch_size=None, num_workers=2)) == [b"1", b"2", b"3"]
    assert len(newer.objects) == 4


def test_data_sets_that_are_let_go_of_leave_nothing(
    changing: Prefix, millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = start_supervisor(millrace_bin, tmp_path, changing.url)
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    for number in range(100):  # more than a supervisor has room for
        ds: Any = of(KINDS[number % 2], changing)
        assert len(ds.objects) == 2
    wait_for(lambda: len(supervisor.stat()["datasets"]) <= 3, "they were never closed")
    assert len(list(ds)) == 2
    del ds
    gc.collect()
    assert supervisor.stop() == 0


def test_a_copy_whose_listing_has_gone(changing: Prefix) -> None:
    kept = of(KINDS[1], changing)  # so that their supervisor stays
    ds = of(KINDS[0], changing)
    pickled = pickle.dumps(ds)
    del ds
    gc.collect()
    again = pickle.loads(pickled)
    assert len(again) == 2  # the same objects: as if it had stayed
    del again
    gc.collect()
    changing.put("3")
    other = of(KINDS[1], changing)  # closes those that went
    text = "the listing of this copy has gone, and the objects have changed: keep the data set that was copied"
    with pytest.raises(millrace.ChangedError, match=text):
        pickle.loads(pickled)[0]
    assert names_of(kept.objects) == ["1", "2"] and names_of(other.objects) == ["1", "2", "3"]


COUNTING = """
import sys
from millrace.dataflux.dataflux_mapstyle_dataset import Config, DataFluxMapStyleDataset
made = []
for line in sys.stdin:
    made.append(DataFluxMapStyleDataset("p", "bucket", Config(prefix=line.strip())))
    print(len(made[-1].objects), flush=True)
"""


def test_ranks_share_what_each_of_them_lists_for_the_nth_time(changing: Prefix) -> None:
    environment = {**os.environ, "LOCAL_WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": changing.name}
    pipe: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    ranks = [subprocess.Popen([sys.executable, "-c", COUNTING], **pipe) for _ in range(3)]

    def make(rank: subprocess.Popen[str]) -> int:
        assert rank.stdin is not None and rank.stdout is not None
        rank.stdin.write(f"{changing.name}/\n")
        rank.stdin.flush()
        return int(rank.stdout.readline())

    try:
        for nth in range(3):  # the ranks come to each one at other times; they agree nevertheless
            found = []
            for rank in ranks:
                found.append(make(rank))
                changing.put(f"{nth}-{len(found)}")
            assert found == [2 + 3 * nth] * 3
    finally:
        for rank in ranks:
            rank.communicate("")
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
