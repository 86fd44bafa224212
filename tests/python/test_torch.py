"""millrace beside torch: it loads without it, its classes are torch's once it is loaded, and torch's own DataLoader
reads them, with each way of starting workers."""

from __future__ import annotations

import copy
import logging
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch.utils.data

import millrace
from tests.conftest import ROOT
from tests.property.order_model import deal, single
from tests.python.conftest import Folder
from tests.python.helpers import keep, model_order, name_of, pair

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than this machine has cores


def run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_needs_neither_torch_nor_numpy(socket: str, hundred: Folder) -> None:
    run(
        """
        import sys
        import millrace
        seen = [bytes(x) for b in millrace.IterableDataset(sys.argv[1]).batches(8) for x in b]
        assert len(seen) == 100 and len(millrace.MapDataset(sys.argv[1])[3]) > 0
        assert not {"torch", "numpy"} & set(sys.modules)
        assert isinstance(millrace.IterableDataset(sys.argv[1]), millrace.IterableDataset)
        """,
        hundred.uri,
    )


@pytest.mark.parametrize("first", ["torch", "millrace"])
def test_isinstance_whichever_is_imported_first(socket: str, hundred: Folder, first: str) -> None:
    """Also for a data set that was made before torch was loaded: torch's DataLoader decides by it."""
    run(
        """
        import sys
        if sys.argv[2] == "torch":
            import torch
        import millrace
        it, mapped = millrace.IterableDataset(sys.argv[1]), millrace.MapDataset(sys.argv[1])
        assert type(it) is millrace.IterableDataset
        import pickle
        import torch.utils.data as data
        assert isinstance(it, data.IterableDataset) and isinstance(it, data.Dataset)
        assert isinstance(mapped, data.Dataset) and not isinstance(mapped, data.IterableDataset)
        assert issubclass(it.__class__, millrace.IterableDataset)
        again = pickle.loads(pickle.dumps([it, mapped]))
        assert [type(each) for each in again] == [millrace.IterableDataset, millrace.MapDataset]
        assert len(list(data.DataLoader(it, batch_size=None))) == 100
        """,
        hundred.uri,
        first,
    )


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_each_way_of_starting_workers(socket: str, hundred: Folder, context: str) -> None:
    ds = millrace.IterableDataset(hundred.uri, transform=pair, shuffle=True)
    mapped: Any = millrace.MapDataset(hundred.uri, transform=pair)
    own = millrace.DataLoader(ds, batch_size=8, num_workers=2, multiprocessing_context=context, collate_fn=keep)
    with_sampler = millrace.DataLoader(
        mapped, batch_size=8, num_workers=2, multiprocessing_context=context, collate_fn=keep
    )
    assert [name for batch in own for name, _ in batch] == model_order(ds, 0, 0)
    assert dict(sample for batch in with_sampler for sample in batch) == hundred.contents


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_torchs_loader_with_batches_of_the_data_set(socket: str, hundred: Folder, workers: int) -> None:
    for rank in range(2):
        ds: Any = millrace.IterableDataset(
            hundred.uri, transform=name_of, shuffle=True, batch_size=8, rank=rank, world_size=2
        )
        loader = torch.utils.data.DataLoader(ds, batch_size=None, num_workers=workers)
        order = model_order(ds, 0, 0)
        want = [[order[p] for p in shares[rank]] for shares, _ in deal(100, 2, 8)]
        assert len(ds) == len(loader) == len(want)
        assert list(loader) == want == list(loader)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_torchs_loader_without_batches(
    socket: str, hundred: Folder, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []
    for rank in range(3):
        ds: Any = millrace.IterableDataset(hundred.uri, transform=name_of, shuffle=True, rank=rank, world_size=3)
        order = model_order(ds, 0, 0)
        loader = torch.utils.data.DataLoader(ds, batch_size=None, num_workers=workers)
        got = list(loader)
        assert len(ds) == len(got) == 33
        mine = [[order[p] for p in single(100, 3, rank, w, max(workers, 1))] for w in range(max(workers, 1))]
        for share in mine:  # torch takes turns between the workers
            assert [name for name in got if name in set(share)] == share
        assert sorted(got) == sorted(name for share in mine for name in share)
        seen += got
    assert len(set(seen)) == 99
    batched = torch.utils.data.DataLoader(ds, batch_size=10, num_workers=workers)
    assert sum(len(batch) for batch in batched) == 33


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("inner", [None, 8])
def test_the_length_of_torchs_loader_is_what_it_gives(socket: str, hundred: Folder, workers: int, inner: Any) -> None:
    """torch divides the data set's length as if there were one worker, and Lightning ends the epoch by it."""
    for rank, world in ((0, 1), (1, 3)):
        for size, drop_last in ((None, False), (7, False), (7, True), (40, False)):
            ds: Any = millrace.IterableDataset(
                hundred.uri, transform=name_of, batch_size=inner, rank=rank, world_size=world
            )
            loader = torch.utils.data.DataLoader(
                ds, batch_size=size, num_workers=workers, drop_last=drop_last, collate_fn=keep
            )
            assert len(loader) == len(list(loader)), (rank, world, size, drop_last)


def test_several_in_a_row_have_no_length(socket: str, hundred: Folder) -> None:
    ds: Any = millrace.IterableDataset(hundred.uri, transform=name_of)
    loader = torch.utils.data.DataLoader(ds + ds, batch_size=7, num_workers=2)
    with pytest.raises(TypeError, match="several data sets in a row depends on the loader's workers"):
        len(loader)
    assert sum(map(len, loader)) == 200 == len(list(ds + ds))


class TenEach(millrace.IterableDataset):
    def __iter__(self) -> Any:
        for sample in super().__iter__():
            yield from [sample] * 10


def test_a_subclass_with_an_iter_of_its_own_has_no_length(socket: str, hundred: Folder) -> None:
    ds: Any = TenEach(hundred.uri, transform=name_of)
    loader = torch.utils.data.DataLoader(ds, batch_size=100, num_workers=2)
    for asked in (ds, loader):
        with pytest.raises(TypeError, match="TenEach has an __iter__ of its own"):
            len(asked)
    assert sum(map(len, loader)) == 1000
    with pytest.raises(ValueError, match=r"TenEach has an __iter__ of its own, which millrace\.DataLoader"):
        millrace.DataLoader(ds)


def test_set_epoch_reaches_the_workers_of_torchs_loader(socket: str, hundred: Folder) -> None:
    ds: Any = millrace.IterableDataset(hundred.uri, transform=name_of, shuffle=True, batch_size=8)
    loader = torch.utils.data.DataLoader(ds, batch_size=None, num_workers=2, persistent_workers=True)
    for epoch in (0, 3, 1):
        ds.set_epoch(epoch)
        assert [name for batch in loader for name in batch] == model_order(ds, 0, epoch)


@pytest.mark.parametrize("batch_size", [8, None])
def test_a_copy_moves_by_itself(socket: str, hundred: Folder, batch_size: int | None) -> None:
    ds: Any = millrace.IterableDataset(hundred.uri, transform=name_of, shuffle=True, batch_size=batch_size)
    own = copy.deepcopy(ds)
    ds.set_epoch(5)
    ds.load_state_dict({"digest": ds.digest, "seed": 0, "epoch": 5, "cursor": 40})
    assert flat(own) == model_order(ds, 0, 0)
    assert flat(ds) == model_order(ds, 0, 5)[40:]
    later = copy.deepcopy(ds)
    ds.set_epoch(6)
    assert flat(later) == model_order(ds, 0, 5)[40:]


def flat(ds: Any) -> list[str]:
    return [name for item in ds for name in ([item] if isinstance(item, str) else item)]


def test_a_rank_that_inherits_a_data_set_moves_it_for_itself(socket: str, hundred: Folder) -> None:
    """Ranks of torch.multiprocessing have one that was made before them."""
    ds: Any = millrace.IterableDataset(hundred.uri, transform=name_of, shuffle=True, batch_size=8)
    assert flat(ds)
    pid = os.fork()
    if pid == 0:
        loader = torch.utils.data.DataLoader(ds, batch_size=None, num_workers=1)
        ds.set_epoch(4)
        os._exit(0 if flat(loader) == model_order(ds, 0, 4) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert flat(ds) == model_order(ds, 0, 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_is_set_before_the_rank_is_known(
    socket: str, hundred: Folder, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """As before init_process_group: each rank reads its own part, not all of it."""
    seen = []
    for rank in range(3):
        monkeypatch.delenv("RANK", raising=False)
        ds: Any = millrace.IterableDataset(hundred.uri, transform=name_of, shuffle=True, batch_size=5)
        ds.set_epoch(2)
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        names = flat(torch.utils.data.DataLoader(ds, batch_size=None, num_workers=workers))
        assert 30 <= len(names) <= 35
        seen += names
    assert sorted(seen) == sorted(model_order(ds, 0, 2))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_without_batches(socket: str, hundred: Folder, workers: int) -> None:
    """What is left of the epoch, dealt as all of it is."""
    order = None
    seen = []
    for rank in range(3):
        ds: Any = millrace.IterableDataset(hundred.uri, transform=name_of, shuffle=True, rank=rank, world_size=3)
        ds.load_state_dict({"digest": ds.digest, "seed": 0, "epoch": 2, "cursor": 40})
        order = model_order(ds, 0, 2)[40:]
        loader = torch.utils.data.DataLoader(ds, batch_size=None, num_workers=workers)
        names = flat(loader)
        assert len(names) == len(ds) == 20
        seen += names
    assert sorted(seen) == sorted(order or [])


def test_one_line_says_what_a_data_set_without_batches_cannot(
    socket: str, hundred: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    millrace._iterable._logged_single = False
    ds: Any = millrace.IterableDataset(hundred.uri, transform=name_of)
    loader = torch.utils.data.DataLoader(ds, batch_size=10, num_workers=2, worker_init_fn=log_to_standard_error)
    assert len(list(loader)) == 10
    assert capfd.readouterr().err.count("depends on the number of workers") == 1


def log_to_standard_error(worker: int) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.__stderr__, force=True)


def test_rank_and_world_from_the_environment(socket: str, hundred: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    ds = millrace.IterableDataset(hundred.uri, transform=name_of)
    want = [hundred.names[p] for shares, _ in deal(100, 2, 8) for p in shares[1]]
    for workers in (0, 2):
        loader = millrace.DataLoader(ds, batch_size=8, num_workers=workers, collate_fn=keep)
        assert [name for batch in loader for name in batch] == want
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ValueError, match="RANK=2"):
        len(ds)
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(ValueError, match="integers"):
        len(ds)


def test_worker_exceptions_keep_their_class(socket: str, hundred: Folder) -> None:
    ds = millrace.IterableDataset(hundred.uri, transform=raise_changed)
    with pytest.raises(millrace.ChangedError, match="was changed"):
        list(millrace.DataLoader(ds, batch_size=8, num_workers=1))


def raise_changed(lease: millrace.Lease) -> None:
    raise millrace.ChangedError(f"{lease.name} was changed")


def test_pinning_and_timeout_are_passed_on(socket: str, hundred: Folder) -> None:
    ds = millrace.IterableDataset(hundred.uri, transform=name_of)
    loader = millrace.DataLoader(ds, batch_size=8, num_workers=2, timeout=100, prefetch_factor=3, collate_fn=keep)
    assert (loader.num_workers, loader.timeout, loader.prefetch_factor, loader.batch_size) == (2, 100, 3, 8)
    assert loader.dataset is ds and isinstance(loader, torch.utils.data.DataLoader)
    assert sum(len(batch) for batch in loader) == 100
