"""Ranks compare what they list in torch.distributed's own store, before an epoch begins."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import millrace
from millrace import _agree, _torch, _worker
from tests.python.conftest import Folder, MakeFolder


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group; each rank has a process of its own, so a test clears what this one remembers to be another."""
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    monkeypatch.setattr(_agree, "_agreed", {})
    yield
    dist.destroy_process_group()


def be_another_rank() -> None:
    _agree._agreed.clear()


def test_the_first_says_and_the_others_compare(group: None) -> None:
    _agree.agree("gs://b/p/", 2, "aa" * 32, 10)
    be_another_rank()
    _agree.agree("gs://b/p/", 2, "aa" * 32, 10)
    _agree.agree("gs://b/other/", 2, "bb" * 32, 11)  # another source has another digest
    _agree.agree("gs://b/p/", 4, "cc" * 32, 12)  # so has another world: a loader with its own ranks
    be_another_rank()
    with pytest.raises(millrace.Error, match=r"gs://b/p/: rank 0 .* 11 objects .*bbbb.* 10 .*aaaa.*docs/multi-node"):
        _agree.agree("gs://b/p/", 2, "bb" * 32, 11)


def test_an_epoch_that_one_rank_begins_alone(
    group: None, socket: str, hundred: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """It took a batch for a look before the training, and is an epoch ahead from then on."""
    first, second = (
        millrace.DataLoader(millrace.IterableDataset(hundred.uri, rank=rank, world_size=2), batch_size=10)
        for rank in range(2)
    )
    next(iter(first))
    assert len(list(second)) == 5 and "no other rank" not in caplog.text
    assert len(list(first)) == 5 and "rank 0 has read its part of epoch 1, and no other rank" in caplog.text
    assert len(list(second)) == 5 and caplog.text.count("no other rank") == 1
    alone = millrace.DataLoader(millrace.IterableDataset(hundred.uri, rank=0, world_size=1), batch_size=10)
    assert len(list(alone)) == 10 and caplog.text.count("no other rank") == 1


def test_a_source_that_is_listed_again_has_another_turn(group: None) -> None:
    for digest in ("aa", "bb", "aa"):
        _agree.agree("train", 2, digest, 1)
    be_another_rank()
    _agree.agree("train", 2, "aa", 1)
    _agree.agree("train", 2, "bb", 1)
    with pytest.raises(millrace.Error, match="docs/multi-node"):
        be_another_rank()
        _agree.agree("train", 2, "bb", 1)


def test_ranks_that_torchrun_starts_again_compare_anew(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its store stays, and the bucket may have grown meanwhile. Each of several nodes counts its own attempts."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    _agree.agree("train", 2, "aa", 1)
    be_another_rank()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    _agree.agree("train", 2, "bb", 2)
    be_another_rank()
    with pytest.raises(millrace.Error, match=r"has 1 objects \(digest aa\).* has 2 \(digest bb\)"):
        _agree.agree("train", 2, "aa", 1)
    for variable, value in (("LOCAL_WORLD_SIZE", "1"), ("TORCHELASTIC_USE_AGENT_STORE", "False")):
        monkeypatch.setenv(variable, value)
        be_another_rank()
        _agree.agree(variable, 2, "aa", 1)
        be_another_rank()
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
        with pytest.raises(millrace.Error, match="docs/multi-node"):
            _agree.agree(variable, 2, "bb", 1)
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")


def test_a_forked_process_has_a_connection_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent is in a call of the process group's store all the while."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(_agree, "_agreed", {})
    dist.init_process_group("gloo", store=server, rank=0, world_size=1)
    try:
        store = dist.distributed_c10d._get_default_store()
        other = store.clone()
        waiting = threading.Thread(target=lambda: store.wait(["end"]))
        waiting.start()
        child = multiprocessing.get_context("fork").Process(target=_agree.agree, args=("train", 2, "aa", 1))
        child.start()
        child.join(60)
        child.kill()
        child.join()
        other.set("end", "")
        waiting.join()
        assert child.exitcode == 0
        with pytest.raises(millrace.Error, match=r"has 2 objects \(digest bb\).* has 1 \(digest aa\)"):
            _agree.agree("train", 2, "bb", 2)
    finally:
        dist.destroy_process_group()


def test_of_the_workers_of_a_loader_the_first_compares(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    _agree.agree("train", 2, "aa", 1)
    be_another_rank()
    monkeypatch.setattr(_worker, "parent", lambda: 4711)
    monkeypatch.setattr(_torch, "worker", lambda: (1, 2))
    _agree.agree("train", 2, "bb", 1)
    monkeypatch.setattr(_torch, "worker", lambda: (0, 2))
    with pytest.raises(millrace.Error, match="docs/multi-node"):
        _agree.agree("train", 2, "bb", 1)
    _agree._agreed[4711, "train", 2] = ["bb"]
    _agree.agree("train", 2, "bb", 1)


def test_nothing_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_agree, "_agreed", {})
    _agree.agree("train", 2, "aa", 1)  # no process group
    be_another_rank()
    _agree.agree("train", 2, "bb", 1)


def test_lists_of_objects_are_compared_with_themselves(
    group: None, socket: str, folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank may read one that the others do not; each may have its own."""
    monkeypatch.setattr("millrace._arguments.resolve_rank", lambda *_: (0, 2))
    objects = folder(40)
    uris = [f"file://{name}" for name in objects.names]

    def read(some: list[str]) -> None:
        ds = millrace.MapDataset.from_objects(some)
        assert len(list(millrace.DataLoader(ds, batch_size=4, sampler=range(4), collate_fn=len))) == 1

    read(uris[:10])
    read(uris[10:30])
    be_another_rank()
    read(uris[9::-1])
    read(uris[30:])
    be_another_rank()
    said = r"a list of objects: rank 0 .*the nodes would train on different data"
    source = millrace.MapDataset.from_objects(uris[:10])._source
    with pytest.raises(millrace.Error, match=said):
        _agree.agree(str(source), 2, "of other versions", 10, source._listed_as)
    # In the loader's own order each rank reads its part of one list.
    iter(millrace.DataLoader(millrace.MapDataset.from_objects(uris[:10]), batch_size=4))
    be_another_rank()
    with pytest.raises(millrace.Error, match=said):
        iter(millrace.DataLoader(millrace.MapDataset.from_objects(uris[10:20]), batch_size=4))


@pytest.mark.parametrize("kind", ["iterable", "map", "sampler"])
def test_every_kind_of_loader_compares(
    group: None, socket: str, hundred: Folder, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace._arguments.resolve_rank", lambda *_: (0, 2))
    dataset: Any = (millrace.IterableDataset if kind == "iterable" else millrace.MapDataset)(hundred.uri)
    sampler = range(0, 100, 2) if kind == "sampler" else None
    loader = millrace.DataLoader(dataset, batch_size=8, sampler=sampler)
    _agree.agree(hundred.uri, 2, "of another listing", 1)
    be_another_rank()
    with pytest.raises(millrace.Error, match="the nodes would train on different data"):
        iter(loader)


def reads(uri: str, kind: str, **order: Any) -> Any:
    """What begins an iteration in that order."""
    if kind == "map":
        return millrace.DataLoader(millrace.MapDataset(uri), batch_size=8, **order)
    dataset = millrace.IterableDataset(uri, batch_size=8, **order)
    if kind == "torch":
        return dataset
    return dataset.batches() if kind == "batches" else millrace.DataLoader(dataset)


@pytest.mark.parametrize("kind", ["iterable", "map", "batches", "torch"])
def test_the_ranks_read_in_one_order(
    group: None, socket: str, hundred: Folder, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace._arguments.resolve_rank", lambda *_: (0, 2))
    iter(reads(hundred.uri, kind, shuffle=True, seed=1))
    iter(reads(hundred.uri, kind, shuffle="block", block_bytes=10_000, seed=1))
    be_another_rank()
    with pytest.raises(
        millrace.Error, match=r"rank 0 .* shuffle=True, seed=2, batch_size=8, .* shuffle=True, seed=1, .*"
    ):
        iter(reads(hundred.uri, kind, shuffle=True, seed=2))
    iter(reads(hundred.uri, kind, shuffle=True, seed=1))
    with pytest.raises(millrace.Error, match=r"shuffle='block' \(\d+ objects a block, 16 mixed\).*'block'.*multi-node"):
        iter(reads(hundred.uri, kind, shuffle="block", block_bytes=20_000, seed=1))


def test_epochs_that_are_set_for_torch_s_loader(
    group: None, socket: str, hundred: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers do not compare: the process that sets the epoch does, and waits for no listing."""
    monkeypatch.setattr("millrace._arguments.resolve_rank", lambda *_: (0, 2))
    monkeypatch.setattr("millrace._connection.Source.index", lambda _: pytest.fail("it asked for the listing"))
    reads(hundred.uri, "torch", shuffle=True, seed=1).set_epoch(3)
    be_another_rank()
    with pytest.raises(millrace.Error, match=r"seed=2.*seed=1"):
        reads(hundred.uri, "torch", shuffle=True, seed=2).set_epoch(3)


@pytest.mark.parametrize("kind", ["iterable", "map"])
def test_the_ranks_go_on_at_one_sample(
    group: None, socket: str, hundred: Folder, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = reads(hundred.uri, kind)  # of one rank alone: a state serves any number
    states = [loader.state_dict() for _batch in loader]
    assert [state["cursor"] for state in states[:3]] == [8, 16, 24]
    monkeypatch.setattr("millrace._arguments.resolve_rank", lambda *_: (0, 2))

    def go_on(*from_states: dict[str, Any]) -> None:
        be_another_rank()
        loader = reads(hundred.uri, kind)
        for state in from_states:
            loader.load_state_dict(state)
            iter(loader)
            assert len(list(loader)) > 0  # the rest of that epoch; the next one is not compared

    go_on(states[1], states[0])
    go_on(states[1], states[0])
    with pytest.raises(millrace.Error, match=r"begins epoch 0 after 8 samples, rank 0 on .* after 16: .*multi-node"):
        go_on(states[0])
    with pytest.raises(millrace.Error, match=r"begins epoch 0 after 24 samples, rank 0 on .* after 8: .*multi-node"):
        go_on(states[1], states[2])


def test_attempts_that_cannot_be_told_apart_do_not_compare_where_they_stand(
    group: None, socket: str, hundred: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace._arguments.resolve_rank", lambda *_: (0, 2))
    iter(reads(hundred.uri, "map", shuffle=True, seed=1))
    be_another_rank()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    iter(reads(hundred.uri, "map", shuffle=True, seed=2))
