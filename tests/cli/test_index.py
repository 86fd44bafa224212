"""Saved indexes: made, read in place of a listing, refused, raced for, kept in the cache and used by a resume."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import millrace
from tests.conftest import BIN, StartDevstore
from tests.serve import DEADLINE_S, OBJECTS, StartServe, Supervisor, wait_for
from tests.stores import put


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of indexes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "millrace" / "index"


def cached(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.mri"))


def write_config(path: Path, uri: str, dataset: str = "", **sections: str) -> Path:
    text = f'[dataset.train]\nuri = "{uri}"\n{dataset}\n[memory]\narena_bytes = "8MiB"\n'
    path.write_text(text + "".join(f"[{name}]\n{body}\n" for name, body in sections.items()))
    return path


def dataset_of(server: Supervisor) -> dict[str, Any]:
    server.wait_ready()
    return dict(server.stat()["datasets"][0])


def error_of(server: Supervisor) -> str:
    failed = wait_for(lambda: [d for d in server.stat()["datasets"] if d["state"] == "failed"], "it did not fail")
    return str(failed[0]["error"])


# ---- a file ----


def test_a_saved_index_is_made_once_and_read_later(
    serve: StartServe, folder: Path, tmp_path: Path, cache: Path
) -> None:
    config = write_config(tmp_path / "c.toml", f"file://{folder}/", f'index = "{tmp_path}/sub/train.mri"')
    first = dataset_of(serve(config))
    assert first["objects"] == OBJECTS and first["requests"] == 1
    assert (tmp_path / "sub" / "train.mri").is_file()
    (folder / "new").write_bytes(b"later")
    second = dataset_of(serve(config))
    assert second["objects"] == OBJECTS and second["digest"] == first["digest"]
    assert second["requests"] == 0
    assert not list(tmp_path.glob("sub/*.tmp"))


def test_an_index_of_other_data_is_refused(serve: StartServe, folder: Path, tmp_path: Path, cache: Path) -> None:
    place = f'index = "{tmp_path}/train.mri"'
    dataset_of(serve(write_config(tmp_path / "c.toml", f"file://{folder}/", place)))
    other = tmp_path / "other"
    other.mkdir()
    (other / "x").write_bytes(b"x")
    server = serve(write_config(tmp_path / "d.toml", f"file://{other}/", place))
    failed = wait_for(lambda: [d for d in server.stat()["datasets"] if d["state"] == "failed"], "it was not refused")
    assert "cannot be used" in failed[0]["error"] and "train.mri" in failed[0]["error"]


@pytest.mark.parametrize("damage", ["cut", "flip", "foreign"])
def test_a_damaged_index_is_refused(serve: StartServe, folder: Path, tmp_path: Path, cache: Path, damage: str) -> None:
    index = tmp_path / "train.mri"
    config = write_config(tmp_path / "c.toml", f"file://{folder}/", f'index = "{index}"')
    dataset_of(serve(config))
    whole = index.read_bytes()
    flipped = whole[:200] + bytes([whole[200] ^ 1]) + whole[201:]
    data = {"cut": whole[:-3], "flip": flipped, "foreign": b"{}"}[damage]
    index.write_bytes(data)
    server = serve(config)
    failed = wait_for(lambda: [d for d in server.stat()["datasets"] if d["state"] == "failed"], "it was not refused")
    assert "saved index" in failed[0]["error"] and "remove it" in failed[0]["error"]
    assert index.read_bytes() == data, "it is the user's to remove"


def test_an_old_index_is_listed_again(serve: StartServe, folder: Path, tmp_path: Path, cache: Path) -> None:
    index = tmp_path / "train.mri"
    config = write_config(
        tmp_path / "c.toml", f"file://{folder}/", f'index = "{index}"', list="max_age_s = 1\ncache_files = 0"
    )
    first = dataset_of(serve(config))
    (folder / "new").write_bytes(b"later")
    made = json.loads(describe(index))["created_ns"]
    wait_for(lambda: age_s(made) > 2, "time stands still")
    second = dataset_of(serve(config))
    assert second["objects"] == OBJECTS + 1 and second["digest"] != first["digest"]
    assert json.loads(describe(index))["digest"] == second["digest"], "the old one is replaced"


def age_s(created_ns: int) -> float:
    return time.time() - created_ns / 1e9


def describe(index: Path) -> str:
    return subprocess.run(
        ["millrace", "index", "--json", str(index)], check=True, capture_output=True, text=True
    ).stdout


# ---- the cache ----


def test_every_listing_is_cached_and_reused_only_on_request(
    serve: StartServe, folder: Path, tmp_path: Path, cache: Path
) -> None:
    plain = write_config(tmp_path / "c.toml", f"file://{folder}/")
    server = serve(plain)
    first = dataset_of(server)
    wait_for(lambda: len(cached(cache)) == 1, "not cached")
    assert first["digest"] in cached(cache)[0].name
    (folder / "new").write_bytes(b"later")
    again = dataset_of(serve(plain))
    assert again["objects"] == OBJECTS + 1, "a fresh start lists"
    wait_for(lambda: len(cached(cache)) == 2, "not cached")
    lazy = write_config(tmp_path / "d.toml", f"file://{folder}/", list="max_age_s = 3600")
    (folder / "newer").write_bytes(b"later")
    server = serve(lazy)
    third = dataset_of(server)
    assert third["digest"] == again["digest"] and third["requests"] == 0
    assert "in the cache, listed" in server.log.read_text(), "the age is printed"
    classes = write_config(
        tmp_path / "e.toml", f"file://{folder}/", list='max_age_s = 3600\nexclude_classes = ["NEARLINE"]'
    )
    assert dataset_of(serve(classes))["objects"] == OBJECTS + 2, "an index that leaves out other classes is another one"


def test_nobody_else_enters_the_cache(serve: StartServe, folder: Path, tmp_path: Path, cache: Path) -> None:
    one = serve(write_config(tmp_path / "c.toml", f"file://{folder}/"))
    one.wait_ready()
    wait_for(lambda: cached(cache), "not cached")
    assert [path.stat().st_mode & 0o777 for path in (cache, cache.parent, cache.parent.parent)] == [0o700] * 3


def test_the_cache_is_bounded(serve: StartServe, folder: Path, tmp_path: Path, cache: Path) -> None:
    config = write_config(tmp_path / "c.toml", f"file://{folder}/", list="cache_files = 2")
    digests = []
    for i in range(4):
        (folder / f"new{i}").write_bytes(b"later")
        server = serve(config)
        digests.append(dataset_of(server)["digest"])
        wait_for(lambda: any(digests[-1] in path.name for path in cached(cache)), "not cached")
        os.utime(next(path for path in cached(cache) if digests[-1] in path.name), (i, i))
        server.stop()
    left = [path.name for path in cached(cache)]
    assert len(left) == 2 and any(digests[-1] in name for name in left)
    other = tmp_path / "other"
    other.mkdir()
    (other / "object").write_bytes(b"1")
    digest = dataset_of(serve(write_config(tmp_path / "other.toml", f"file://{other}/", list="cache_files = 2")))[
        "digest"
    ]
    left = wait_for(lambda: [path.name for path in cached(cache) if digest in path.name], "not cached")
    wait_for(lambda: len(cached(cache)) == 2, "nothing was removed")
    assert any(digests[-1] in path.name for path in cached(cache)), "of the place with most, the oldest went"
    (folder / "last").write_bytes(b"later")
    again = dataset_of(serve(config))["digest"]
    wait_for(lambda: any(again in path.name for path in cached(cache)), "not cached")
    wait_for(lambda: len(cached(cache)) == 2, "nothing was removed")
    assert any(digest in path.name for path in cached(cache)), "though that one was used before"


def test_a_damaged_cache_is_passed_over(serve: StartServe, folder: Path, tmp_path: Path, cache: Path) -> None:
    config = write_config(tmp_path / "c.toml", f"file://{folder}/", list="max_age_s = 3600")
    dataset_of(serve(config))
    path = wait_for(lambda: cached(cache), "not cached")[0]
    path.write_bytes(path.read_bytes()[:-1])
    server = serve(config)
    assert dataset_of(server)["requests"] == 1
    assert "removed" in server.log.read_text()


def test_a_listing_from_the_future(serve: StartServe, folder: Path, tmp_path: Path, cache: Path) -> None:
    """Of a machine whose clock was a day fast: not new until tomorrow, and not preferred to later ones."""
    config = write_config(tmp_path / "c.toml", f"file://{folder}/", list="max_age_s = 3600")
    fast = {"LD_PRELOAD": str(BIN / "millrace-test-clock.so"), "CLOCK_OFF_S": "86400"}
    dataset_of(serve(config, **fast))
    wait_for(lambda: cached(cache), "not cached")
    (folder / "new").write_bytes(b"later")
    again = dataset_of(serve(config))
    assert again["requests"] == 1 and again["objects"] == OBJECTS + 1
    wait_for(lambda: len(cached(cache)) == 2, "not cached")
    assert dataset_of(serve(config))["digest"] == again["digest"]


# ---- resume ----


def connected(server: Supervisor, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """The data sets of this process are that one's from here on."""
    monkeypatch.setenv("MILLRACE_SOCKET", str(server.socket))
    return server


def loader_of(uri: str, **arguments: Any) -> Any:
    return millrace.DataLoader(
        millrace.IterableDataset(uri, shuffle=True, transform=lambda lease: lease.name), batch_size=4, **arguments
    )


def test_a_resume_sees_the_listing_of_its_state(
    serve: StartServe, folder: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path / "c.toml", f"file://{folder}/")
    server = connected(serve(config), monkeypatch)
    loader = loader_of("train")
    whole = [name for batch in loader for name in batch]
    loader = loader_of("train")
    steps = iter(loader)
    begun = [name for _ in range(2) for name in next(steps)]
    state = loader.state_dict()
    wait_for(lambda: cached(cache), "not cached")
    del steps, loader
    server.stop()

    (folder / "zzz").write_bytes(b"grown")
    server = connected(serve(config), monkeypatch)
    for workers in (0, 2):
        loader = loader_of("train", num_workers=workers)
        loader.load_state_dict(state)
        assert begun + [name for batch in loader for name in batch] == whole
        assert loader.state_dict()["digest"] == state["digest"]
    fresh = loader_of("train")
    assert sum(len(batch) for batch in fresh) == OBJECTS + 1
    states = {d["digest"]: d["objects"] for d in server.stat()["datasets"]}
    assert states == {state["digest"]: OBJECTS, fresh.state_dict()["digest"]: OBJECTS + 1}


def test_samplers_and_the_listing_of_a_state(
    serve: StartServe, folder: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a sampler was made for must be what the state was saved over: else it counts, or names, other objects."""
    from torch.utils.data import RandomSampler, Sampler, SubsetRandomSampler
    from torch.utils.data.distributed import DistributedSampler

    config = write_config(tmp_path / "c.toml", f"file://{folder}/")
    server = connected(serve(config), monkeypatch)
    made: Any = {
        "all": lambda ds: RandomSampler(ds),
        "rank": lambda ds: DistributedSampler(ds, 1, 0),
        "some": lambda ds: SubsetRandomSampler(
            [i for i, (name, _) in enumerate(ds.objects) if not name.endswith("000")]
        ),
    }

    def begin(kind: str, digest: str | None = None) -> Any:
        ds = millrace.MapDataset("train", transform=lambda lease: lease.name)
        if digest is not None:
            ds.use_listing(digest)
        sampler: Sampler[int] = made[kind](ds)
        return millrace.DataLoader(ds, batch_size=4, sampler=sampler, collate_fn=list)

    begun, states = {}, {}
    for kind in made:
        loader = begin(kind)
        steps = iter(loader)
        begun[kind] = [name for _ in range(2) for name in next(steps)]
        states[kind] = loader.state_dict()
    whole = {name for name, _ in loader.dataset.objects}
    wait_for(lambda: cached(cache), "not cached")
    del loader, steps
    server.stop()

    (folder / "0").write_bytes(b"grown")  # the first of the names
    server = connected(serve(config), monkeypatch)
    for kind, state in states.items():
        loader = begin(kind)
        if kind != "all":
            with pytest.raises(ValueError, match="use_listing"):
                loader.load_state_dict(state)
            assert loader.dataset.digest != state["digest"] and loader.state_dict()["cursor"] == 0
            loader = begin(kind, state["digest"])
        loader.load_state_dict(state)
        names = begun[kind] + [name for batch in loader for name in batch]
        assert sorted(names) == sorted(whole - {f"{folder}/000"} if kind == "some" else whole)
    with pytest.raises(ValueError, match="64 hex digits"):
        loader.dataset.use_listing("0")


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_loader_and_the_listing_of_a_state(
    serve: StartServe, folder: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Its workers load the state, and its process does not: the next epoch is over what there is now."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def begin() -> Any:
        ds: Any = millrace.IterableDataset("train", transform=lambda lease: lease.name, batch_size=4, shuffle=True)
        return StatefulDataLoader(ds, batch_size=None, num_workers=workers, collate_fn=list)

    config = write_config(tmp_path / "c.toml", f"file://{folder}/")
    server = connected(serve(config), monkeypatch)
    loader = begin()
    steps = iter(loader)
    begun = [name for _ in range(2) for name in next(steps)]
    state = loader.state_dict()
    whole = {name for name, _ in loader.dataset.objects}
    wait_for(lambda: cached(cache), "not cached")
    del loader, steps
    server.stop()

    (folder / "zzz").write_bytes(b"grown")
    server = connected(serve(config), monkeypatch)
    loader = begin()
    loader.load_state_dict(state)
    names = begun + [name for batch in loader for name in batch]
    assert sorted(names) == sorted(whole)
    assert sorted(name for batch in loader for name in batch) == sorted(
        whole | ({f"{folder}/zzz"} if workers else set())
    )


def test_persistent_workers_take_the_loaded_listing(
    serve: StartServe, folder: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path / "c.toml", f"file://{folder}/")
    server = connected(serve(config), monkeypatch)
    state = loader_of("train").state_dict()
    wait_for(lambda: cached(cache), "not cached")
    server.stop()
    (folder / "zzz").write_bytes(b"grown")
    server = connected(serve(config), monkeypatch)
    loader = loader_of("train", num_workers=1, persistent_workers=True)
    assert sum(len(batch) for batch in loader) == OBJECTS + 1
    fresh = loader.state_dict()
    loader.load_state_dict(state)
    assert sum(len(batch) for batch in loader) == OBJECTS
    map_loader = millrace.DataLoader(millrace.MapDataset("train", transform=lambda lease: lease.name), batch_size=4)
    assert sum(len(batch) for batch in map_loader) == OBJECTS + 1
    map_loader.load_state_dict(state)
    assert sum(len(batch) for batch in map_loader) == OBJECTS

    # Two loaders of one data set: a state that the other has loaded.
    one = loader_of("train", num_workers=1, persistent_workers=True)
    assert sum(len(batch) for batch in one) == OBJECTS + 1
    millrace.DataLoader(one.dataset, batch_size=4).load_state_dict(state)
    assert sorted(name for batch in one for name in batch) == sorted(one.dataset.objects[i][0] for i in range(OBJECTS))

    import torch.utils.data  # all that is collected with this file would wait for it

    # torch's own loader cannot be told: its workers must not mix the listings.
    ds: Any = millrace.IterableDataset("train", transform=lambda lease: lease.name, batch_size=4)
    bare = torch.utils.data.DataLoader(ds, batch_size=None, num_workers=1, persistent_workers=True)
    assert sum(len(batch) for batch in bare) == OBJECTS + 1
    ds.load_state_dict(state)
    with pytest.raises(millrace.Error, match="a state of another one was loaded since"):
        list(bare)
    again = torch.utils.data.DataLoader(ds, batch_size=None, num_workers=1, persistent_workers=True)
    assert sum(len(batch) for batch in again) == OBJECTS
    ds.use_listing(fresh["digest"])
    with pytest.raises(millrace.Error, match="a state of another one was loaded since"):
        list(again)


def test_a_listing_that_is_gone_is_an_error_with_the_differences(
    serve: StartServe, folder: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path / "c.toml", f"file://{folder}/")
    server = serve(config)
    dataset_of(server)
    wait_for(lambda: len(cached(cache)) == 1, "not cached")
    server.stop()
    (folder / "005").unlink()
    (folder / "new").write_bytes(b"later")
    server = connected(serve(config), monkeypatch)
    loader = loader_of("train")
    state = {"digest": "0123456789abcdef" * 4, "seed": 0, "epoch": 0, "cursor": 0}
    with pytest.raises(millrace.ChangedError, match="another listing") as caught:
        loader.load_state_dict(state)
    assert "1 objects added, 1 removed, 0 replaced" in str(caught.value)
    assert "005" in str(caught.value) and "new" in str(caught.value)
    assert sum(len(batch) for batch in loader) == OBJECTS, "the loader goes on with what is there"
    with pytest.raises(ValueError, match="digest"):
        loader.load_state_dict({**state, "digest": "0123"})


def test_a_resume_from_the_index_of_the_data_set(
    serve: StartServe, folder: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is gone, and the data set is opened by its URI, which lists anew: the named one has the index."""
    config = write_config(tmp_path / "c.toml", f"file://{folder}/", f'index = "{tmp_path}/train.mri"')
    server = serve(config)
    digest = dataset_of(server)["digest"]
    server.stop()
    shutil.rmtree(cache, ignore_errors=True)
    (folder / "zzz").write_bytes(b"grown")
    server = connected(serve(config), monkeypatch)
    loader = loader_of("train")
    loader.load_state_dict({"digest": digest, "seed": 0, "epoch": 0, "cursor": 0})
    assert sum(len(batch) for batch in loader) == OBJECTS


@pytest.mark.parametrize("workers", [0, 1])
def test_another_loader_of_the_data_set_loads_an_older_listing(
    serve: StartServe, folder: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """What this one has left of the epoch is counted in the listing that it began with."""
    config = write_config(tmp_path / "c.toml", f"file://{folder}/")
    server = serve(config)
    digest = dataset_of(server)["digest"]
    wait_for(lambda: len(cached(cache)) == 1, "not cached")
    server.stop()
    (folder / "zzz").write_bytes(b"grown")
    server = connected(serve(config), monkeypatch)
    ds = millrace.MapDataset("train")
    train = millrace.DataLoader(ds, batch_size=4, shuffle=True, num_workers=workers, collate_fn=len)
    other = millrace.DataLoader(ds, batch_size=4, collate_fn=len)
    steps = iter(train)
    next(steps)
    place = train.state_dict()
    other.load_state_dict({"digest": digest, "seed": 0, "epoch": 0, "cursor": 0})
    for use in (lambda: next(steps), train.state_dict):
        with pytest.raises(RuntimeError, match="Give each loader a data set of its own"):
            use()
    assert sum(other) == OBJECTS
    train.load_state_dict(place)
    assert sum(train) == OBJECTS + 1 - 4


def test_a_resume_over_an_explicit_list(
    serve: StartServe, folder: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the objects was replaced meanwhile: the list is of the same names, and another listing."""
    config = tmp_path / "c.toml"
    config.write_text('[memory]\narena_bytes = "8MiB"\n')
    uris = [f"file://{folder}/{i:03}" for i in range(8)]
    server = connected(serve(config), monkeypatch)
    state = millrace.IterableDataset.from_objects(uris, shuffle=True, batch_size=2).state_dict()
    wait_for(lambda: cached(cache), "not cached")
    server.stop()
    (folder / "003").write_bytes(b"replaced")
    server = connected(serve(config), monkeypatch)
    dataset = millrace.IterableDataset.from_objects(uris, shuffle=True, batch_size=2)
    assert dataset.digest != state["digest"]
    dataset.load_state_dict(state)
    assert dataset.digest == state["digest"] and len(dataset.objects) == 8
    with pytest.raises(millrace.ChangedError, match="003"):
        list(dataset.batches())


def test_too_many_uris_say_what_to_do(
    serve: StartServe, config: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected(serve(config), monkeypatch)
    with pytest.raises(ValueError, match="from_objects"):
        millrace.MapDataset([f"gs://bucket/a/long/way/down/{i}" for i in range(5000)])


# ---- an object in the bucket ----


def test_one_listing_a_job_by_a_gs_index(
    serve: StartServe, devstore: StartDevstore, tmp_path: Path, cache: Path
) -> None:
    """Four nodes start at once: one index is saved, all have its digest, though the bucket grows all the time."""
    log = tmp_path / "requests"
    store = devstore("--memory", "--log", log, "--latency-ms", "20", "--root", bucket_folder(tmp_path, 30))
    config = write_config(
        tmp_path / "c.toml",
        "gs://bucket/data/",
        'index = "gs://bucket/meta/train.mri"',
        gcs=f'endpoint = "{store.url}"\nauth = "anonymous"',
    )
    # A folder of its own for each: a node's cache is not another's.
    nodes = [serve(config, XDG_CACHE_HOME=str(tmp_path / f"cache{i}")) for i in range(4)]
    for i in range(5):
        put(store.url, "bucket", f"data/late{i}")
    digests = {dataset_of(node)["digest"] for node in nodes}
    assert len(digests) == 1
    late = serve(config, XDG_CACHE_HOME=str(tmp_path / "cache9"))
    assert dataset_of(late)["digest"] in digests and dataset_of(late)["requests"] == 0
    assert "train.mri" in late.log.read_text()


def test_an_old_gs_index_is_replaced_once(
    serve: StartServe, devstore: StartDevstore, tmp_path: Path, cache: Path
) -> None:
    """Two nodes find it too old: both list, one replaces the very generation that was old, the other reads that."""
    store = devstore("--memory", "--latency-ms", "20", "--root", bucket_folder(tmp_path, 30))
    config = write_config(
        tmp_path / "c.toml",
        "gs://bucket/data/",
        'index = "gs://bucket/meta/train.mri"',
        gcs=f'endpoint = "{store.url}"\nauth = "anonymous"',
        list="max_age_s = 1\ncache_files = 0",
    )
    first = serve(config)
    old, began = dataset_of(first)["digest"], time.monotonic()
    first.stop()
    put(store.url, "bucket", "data/late")
    wait_for(lambda: time.monotonic() - began > 2.5, "time stands still")
    nodes = [serve(config) for _ in range(2)]
    datasets = [dataset_of(node) for node in nodes]
    assert datasets[0]["digest"] == datasets[1]["digest"] != old
    assert datasets[0]["objects"] == 31
    assert any("is listed again" in node.log.read_text() for node in nodes)


def test_an_index_that_cannot_be_read_or_written_fails(
    serve: StartServe, devstore: StartDevstore, tmp_path: Path, cache: Path
) -> None:
    store = devstore("--memory", "--root", bucket_folder(tmp_path, 3), "--deny", "storage.objects.create")
    config = write_config(
        tmp_path / "c.toml",
        "gs://bucket/data/",
        'index = "gs://bucket/meta/train.mri"',
        gcs=f'endpoint = "{store.url}"\nauth = "anonymous"',
    )
    server = serve(config)
    failed = wait_for(lambda: [d for d in server.stat()["datasets"] if d["state"] == "failed"], "it did not fail")
    assert "cannot be saved as gs://bucket/meta/train.mri" in failed[0]["error"]


def test_what_is_no_index_is_not_downloaded(
    serve: StartServe, devstore: StartDevstore, tmp_path: Path, cache: Path
) -> None:
    """A size is anybody's word: of a huge object with another magic, or with a header that does not fit it, the first
    bytes are read, and no memory is taken for the others."""
    log = tmp_path / "requests"
    root = bucket_folder(tmp_path, 3)
    store = devstore("--log", log, "--root", root)
    gcs = f'endpoint = "{store.url}"\nauth = "anonymous"'
    index = root / "bucket" / "train.mri"
    config = write_config(tmp_path / "c.toml", "gs://bucket/data/", 'index = "gs://bucket/train.mri"', gcs=gcs)
    dataset_of(serve(config))
    whole = index.read_bytes()
    for start, why in ((b"", "this is not a saved index"), (whole, "should have")):
        with index.open("wb") as file:
            file.write(start)
            file.truncate(200 << 20)  # zeros
        log.write_text("")
        error = error_of(serve(config))
        assert why in error and "remove it" in error
        sent = [line for line in log.read_text().splitlines() if "train.mri" in line and "alt=media" in line]
        assert len(sent) == 1 and "206" in sent[0], sent


def test_an_index_that_needs_too_much_memory_is_refused(
    serve: StartServe, folder: Path, tmp_path: Path, cache: Path
) -> None:
    """A header that is whole, and promises an image of twice the machine's memory."""
    index = tmp_path / "train.mri"
    config = write_config(tmp_path / "c.toml", f"file://{folder}/", f'index = "{index}"')
    dataset_of(serve(config))
    whole = index.read_bytes()
    fields = whole[16 : 16 + int.from_bytes(whole[8:12], "little")]
    image = 2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    blocks = (image + (1 << 20) - 1) >> 20
    header = fields[: fields.index(b"\xabimage_bytes")] + b"\xabimage_bytes\xcf" + image.to_bytes(8, "big")
    for key, value in ((b"\xa7lengths", b"\x01\0\0\0" * blocks), (b"\xa6hashes", bytes(32 * blocks))):
        header += key + b"\xc6" + len(value).to_bytes(4, "big") + value
    data = whole[:8] + len(header).to_bytes(4, "little") + bytes(4) + header
    index.write_bytes(data + hashlib.sha256(data).digest() + bytes(blocks))
    error = error_of(serve(config))
    assert f"needs {image} bytes of memory" in error and "train.mri" in error


def bucket_folder(tmp_path: Path, objects: int) -> Path:
    data = tmp_path / "root" / "bucket" / "data"
    data.mkdir(parents=True)
    for i in range(objects):
        (data / f"{i:04}").write_bytes(b"x" * i)
    return tmp_path / "root"


# ---- millrace index ----


def test_the_command_builds_and_describes(folder: Path, tmp_path: Path, cache: Path, runtime: Path) -> None:
    index = tmp_path / "a.mri"
    for objects in (OBJECTS, OBJECTS + 1):  # the second one replaces the first
        done = subprocess.run(
            ["millrace", "index", f"file://{folder}/", "-o", str(index)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        facts = json.loads(describe(index))
        assert facts["objects"] == objects and facts["prefixes"] == [f"{folder}/"] and facts["requests"] == 1
        (folder / "another").write_bytes(b"x")
    text = subprocess.run(["millrace", "index", str(index)], capture_output=True, text=True)
    assert text.returncode == 0 and f"{OBJECTS + 1}" in text.stdout and "file" in text.stdout


def test_the_command_replaces_nothing_but_a_file(folder: Path, tmp_path: Path, cache: Path, runtime: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "saved").touch()
    (tmp_path / "link").symlink_to("saved")
    for place, status, text in (("pipe", 2, "no regular file"), ("link", 0, ""), ("link", 0, "")):
        command = ["millrace", "index", "-q", f"file://{folder}/", "-o", str(tmp_path / place)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, text in done.stderr) == (status, True), done.stderr
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink()
    assert json.loads(describe(tmp_path / "saved"))["objects"] == OBJECTS


def test_the_command_says_what_is_wrong(folder: Path, tmp_path: Path, cache: Path, runtime: Path) -> None:
    bad = tmp_path / "bad.mri"
    bad.write_bytes(b"MRINDEX\n" + bytes(100))
    for arguments, status, text in (
        ([str(bad)], 1, "damaged"),
        ([str(tmp_path / "none.mri")], 1, "none.mri"),
        ([f"file://{folder}/"], 2, "-o"),
        ([f"file://{folder}/nothing/", "-o", str(tmp_path / "x.mri")], 1, "nothing"),
        ([], 2, "usage"),
    ):
        done = subprocess.run(["millrace", "index", *arguments], capture_output=True, text=True)
        assert done.returncode == status, (arguments, done.stderr)
        assert text in done.stderr, (arguments, done.stderr)
    assert not (tmp_path / "x.mri").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(
    millrace_bin: Path, devstore: StartDevstore, tmp_path: Path, cache: Path, number: int
) -> None:
    server = devstore("--memory", "--synthetic", "bucket:10:1", "--latency-ms", "list:1000000")
    process = subprocess.Popen(
        [millrace_bin, "index", "gs://bucket/", "-o", tmp_path / "x.mri"],
        env={**os.environ, "STORAGE_EMULATOR_HOST": server.url},
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        assert any("is being listed" in line for line in process.stderr)
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == -number
    assert not (tmp_path / "x.mri").exists() and not cached(cache)
