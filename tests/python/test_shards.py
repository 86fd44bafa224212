"""Samples of tar shards: found, indexed, read, damaged. Over folders, and over GCS and S3 as the development store has
them."""

from __future__ import annotations

import gc
import gzip
import io
import json
import os
import pickle
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millrace
from tests.conftest import start_devstore
from tests.property.order_model import deal, epoch_order
from tests.python.shards import (
    KEYS,
    Buckets,
    Samples,
    add,
    make_samples,
    plain,
    read_all,
    use,
    write_shard,
    write_shards,
)
from tests.serve import Supervisor, start_supervisor, wait_for
from tests.stores import delete, put


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where indexes are kept, for supervisors that a test starts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "millrace" / "index"


# ---- what is found ----


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Samples]:
    """5 shards of 40 small samples, which are read as a stream."""
    folder = tmp_path_factory.mktemp("small")
    return folder, write_shards(folder, 5, 40, 2000)


def test_braces_name_shards_and_all_samples_come_in_their_order(socket: str, small: tuple[Path, Samples]) -> None:
    folder, samples = small
    ds = millrace.MapDataset(f"file://{folder}/{{000..004}}.tar")
    assert len(ds) == len(samples) == 200
    assert read_all(ds) == samples
    assert [name for name, _ in ds.objects] == [sample["__key__"].decode() for sample in samples]
    assert len(ds.digest) == 64


@pytest.mark.parametrize(
    ("source", "shards"),
    [
        ("{folder}/002.tar", [2]),
        ("{folder}/00{1,3}.tar", [1, 3]),
        ("{folder}/001.tar::{folder}/003.tar", [1, 3]),
        ("{folder}/00${{WHICH}}.tar", [4]),
        (["{folder}/003.tar", "{folder}/000.tar"], [0, 3]),  # in the order of names, whatever the order given
        ("file://{folder}/00{3..4}.tar::file://{folder}/000.tar", [0, 3, 4]),
    ],
)
def test_ways_to_name_shards(
    socket: str, small: tuple[Path, Samples], source: Any, shards: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, samples = small
    monkeypatch.setenv("WHICH", "4")

    def named(text: str) -> str:
        return text.replace("{folder}", str(folder)).replace("{{", "{").replace("}}", "}")

    ds = millrace.MapDataset(named(source) if isinstance(source, str) else [named(each) for each in source])
    assert read_all(ds) == [sample for n in shards for sample in samples[n * 40 : n * 40 + 40]]


def test_a_folder_with_a_format_and_a_shard_without_one(
    socket: str, small: tuple[Path, Samples], tmp_path: Path
) -> None:
    folder, samples = small
    shutil.copytree(folder, tmp_path / "train")
    (tmp_path / "train" / "README.txt").write_text("no shard")
    assert read_all(millrace.MapDataset(f"{tmp_path}/train/", format="tar")) == samples
    whole = millrace.MapDataset(f"file://{folder}/001.tar", format="objects")
    assert len(whole) == 1 and bytes(whole[0]) == (folder / "001.tar").read_bytes()
    some = [f"file://{folder}/00{n}.tar" for n in (4, 0)]
    assert len(millrace.MapDataset.from_objects(some)) == 2  # objects, as ever
    assert read_all(millrace.MapDataset.from_objects(some, format="tar")) == samples[:40] + samples[160:]


def test_large_members_are_hopped_over(socket: str, tmp_path: Path) -> None:
    samples = write_shards(tmp_path, 2, 30, 400_000)
    ds = millrace.MapDataset(f"file://{tmp_path}/{{000..001}}.tar")
    assert read_all(ds) == samples


def test_layout(supervisor: Supervisor, socket: str, tmp_path: Path) -> None:
    """Folders, metadata, names without a suffix and samples that are marked bad are left out; nothing else is."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, data in [
            ("__meta__/a.jpg", b"no"),
            ("dir/a.b.JPG", b"1"),
            ("nosuffix", b"no"),
            ("dir/a.cls", b"2"),
            ("../b.x", b"3"),
            ("/c.x", b""),
            ("bad.jpg", b"no"),
            ("bad.__bad__", b"1"),
            ("n" * 200 + "/" + "m" * 200 + ".x", b"4"),
            ("dir/a.x", b"5"),  # not beside the other members of its key: another sample
        ]:
            add(tar, name, data)
        folder = tarfile.TarInfo("d.d")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    got = [dict(sample) for sample in map(plain, millrace.MapDataset(f"file://{tmp_path}/a.tar"))]
    assert got == [
        {"__key__": b"dir/a", "b.jpg": b"1", "cls": b"2"},
        {"__key__": b"../b", "x": b"3"},
        {"__key__": b"/c", "x": b""},
        {"__key__": ("n" * 200 + "/" + "m" * 200).encode(), "x": b"4"},
        {"__key__": b"dir/a", "x": b"5"},
    ]
    log = supervisor.log.read_text()
    assert "3 members of the shards belong to no sample, and 1 samples are marked __bad__: left out" in log


# ---- a sample ----


def test_a_sample_is_a_mapping_of_views(socket: str, small: tuple[Path, Samples]) -> None:
    folder, samples = small
    ds = millrace.MapDataset(f"file://{folder}/{{000..004}}.tar")
    sample = ds[47]
    want = samples[47]
    assert sample.key == sample["__key__"] == want["__key__"].decode()
    assert sample.url == sample["__url__"] == f"file://{folder}/001.tar"
    assert list(sample) == ["__key__", "__url__", "jpg", "cls"] and len(sample) == 4
    assert "jpg" in sample and "__key__" in sample and "png" not in sample
    with pytest.raises(KeyError, match="png"):
        sample["png"]
    view = sample["jpg"]
    assert isinstance(view, memoryview) and view.readonly and view == want["jpg"]
    assert sample.lease.index == 47 and sample.lease.size > len(view)
    again = pickle.loads(pickle.dumps(sample))
    assert dict(again) == dict(sample) and again.url == sample.url
    assert json.loads(bytes(sample["cls"])) == 7
    assert sample.key in repr(sample) and "jpg, cls" in repr(sample)
    sample.release()
    with pytest.raises(ValueError, match="released"):
        sample["cls"]
    assert view == want["jpg"]  # it holds the memory


def test_a_released_sample_holds_no_memory(socket: str, small: tuple[Path, Samples]) -> None:
    """Though it is kept, as for its key: else what comes later would be copied."""
    ds = millrace.MapDataset(f"file://{small[0]}/{{000..004}}.tar", window=4)
    ds[0].release()

    def copies() -> int:
        lanes = json.loads(ds._source.connection().client.stat())["lanes"]
        return sum(lane["counters"]["copies"] for lane in lanes if lane["window"] == 4)

    kept = []
    for i in range(20):
        kept.append(ds[i])
        kept[-1].release()
    assert copies() == 0
    views = [ds[i]["jpg"] for i in range(20)]
    assert copies() > 0, views


def test_the_order_and_the_steps_are_those_of_any_data_set(socket: str, small: tuple[Path, Samples]) -> None:
    folder, samples = small

    def key(sample: millrace.Sample) -> bytes:
        return bytes(sample["jpg"])

    def make(**arguments: Any) -> millrace.IterableDataset:
        pattern = f"file://{folder}/{{000..004}}.tar"
        return millrace.IterableDataset(pattern, shuffle=True, seed=3, transform=key, **arguments)

    ds = make()
    order = epoch_order(len(samples), 3, 0, bytes.fromhex(ds.digest), True)
    want = [samples[order(p)]["jpg"] for p in range(len(samples))]
    assert [data for batch in ds.batches(16) for data in batch] == want
    ranks = [make(rank=rank, world_size=3) for rank in range(3)]
    got = [list(one.batches(7)) for one in ranks]
    assert len({len(batches) for batches in got}) == 1
    assert sorted(data for batches in got for batch in batches for data in batch) == sorted(
        want[: 200 - 200 % 3] + want[198:]
    )
    shares = deal(200, 3, 7)
    assert got[1][0] == [want[p] for p in shares[0][0][1]]
    # Stopped after two steps of three ranks, continued on one.
    stopped = make(rank=0, world_size=3)
    steps = iter(stopped.batches(7))
    next(steps), next(steps)
    state = stopped.state_dict()
    del steps
    rest = make()
    rest.load_state_dict(state)
    assert [data for batch in rest.batches(7) for data in batch] == want[42:]


def test_a_sample_crosses_to_the_loop_of_a_loader(socket: str, small: tuple[Path, Samples]) -> None:
    pytest.importorskip("torch")
    folder, samples = small
    ds = millrace.IterableDataset(f"file://{folder}/{{000..004}}.tar")
    loader = millrace.DataLoader(ds, batch_size=25, num_workers=2)
    assert [plain(sample) for batch in loader for sample in batch] == samples


# ---- buckets ----


@pytest.fixture
def buckets(millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Buckets]:
    made = Buckets(millrace_bin, tmp_path)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    yield made
    gc.collect()
    for supervisor in made.supervisors:
        assert supervisor.stop() == 0, supervisor.log.read_text()
    made.server.stop()


@pytest.mark.parametrize(
    "fault", ["status:first=1:503:get:*/000.tar", "status:first=2:503:get:*0.tar", "status:0.3:503:get:*"]
)
@pytest.mark.parametrize("empty", [range(0), range(20, 100), range(1, 199)])
@pytest.mark.parametrize("cut", [range(0), range(0, 200, 3)])
def test_shards_whose_answers_come_in_any_order(
    fault: str, empty: range, cut: range, millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are read ahead: the first of them ends last, many that follow one another are empty, many are cut."""
    root, want = tmp_path / "root", []
    for number in range(200):
        path = root / "bucket" / f"{number:03d}.tar"
        if number in empty:
            path.write_bytes(b"")
            continue
        samples = make_samples(number, 2, 100)
        write_shard(path, samples)
        if number in cut:  # where the data of the second sample begins
            path.write_bytes(path.read_bytes()[:2560])
        want += samples[:1] if number in cut else samples
    server = start_devstore("--root", root, "--memory", "--seed", "1", "--fault", fault)
    retry = "[retry]\nbase_ms = 1\ncap_ms = 20\n"
    supervisor = start_supervisor(millrace_bin, tmp_path, server.url, retry)
    use(supervisor, monkeypatch)
    assert read_all(millrace.IterableDataset("gs://bucket/", format="tar", on_error="skip")) == want
    gc.collect()
    assert supervisor.stop() == 0, supervisor.log.read_text()
    server.stop()


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_buckets(buckets: Buckets, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(buckets.supervisor(), monkeypatch)
    small = millrace.MapDataset(f"{scheme}://bucket/train/{{000..003}}.tar")
    assert read_all(small) == buckets.samples
    assert small[30].url == f"{scheme}://bucket/train/001.tar"
    assert read_all(millrace.MapDataset(f"{scheme}://bucket/large/", format="tar")) == buckets.large


def test_samples_that_were_streamed_are_verified_and_others_are_counted(
    buckets: Buckets, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = buckets.supervisor()
    use(supervisor, monkeypatch)

    def unverified() -> int:
        return sum(worker["counters"].get("unverified_objects", 0) for worker in supervisor.stat()["workers"])

    assert len(read_all(millrace.MapDataset("gs://bucket/train/{000..003}.tar"))) == 100
    assert unverified() == 0
    assert len(read_all(millrace.MapDataset("gs://bucket/large/{000..001}.tar"))) == 24
    wait_for(lambda: unverified() > 10, unverified)


def test_known_shards_are_not_read_again(buckets: Buckets, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    use(buckets.supervisor(), monkeypatch)
    first = millrace.MapDataset("gs://bucket/train/{000..002}.tar")
    digest, before = first.digest, buckets.shards_read()
    assert set(before) == {"000.tar", "001.tar", "002.tar"}
    wait_for(lambda: len(list(cache.glob("*.mri"))) == 1, "not cached")  # the data set is ready before
    write_shard(buckets.root / "new.tar", changed := make_samples(77, 25, 30_000))
    put(buckets.server.url, "bucket", "train/001.tar", (buckets.root / "new.tar").read_bytes())
    use(buckets.supervisor(), monkeypatch)
    second = millrace.MapDataset("gs://bucket/train/{000..003}.tar")
    assert len(second) == 100
    assert set(buckets.shards_read()[len(before) :]) == {"001.tar", "003.tar"}  # one was replaced, one is new
    assert second.digest != digest
    want = buckets.samples[:25] + changed + buckets.samples[50:]
    assert read_all(second) == want


def test_known_shards_are_found_among_many_indexes(
    buckets: Buckets, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    use(buckets.supervisor("[list]\ncache_files = 100"), monkeypatch)
    assert len(millrace.MapDataset("gs://bucket/train/{000..002}.tar")) == 75
    wait_for(lambda: len(list(cache.glob("*.mri"))) == 1, "not cached")
    tar = (buckets.root / "bucket/train/003.tar").read_bytes()
    for i in range(40):  # of others, and younger
        put(buckets.server.url, "bucket", f"others/{i:03}.tar", tar)
        assert len(millrace.MapDataset(f"gs://bucket/others/{i:03}.tar")) == 25
    wait_for(lambda: len(list(cache.glob("*.mri"))) == 41, "not cached")
    before = buckets.shards_read()
    use(buckets.supervisor(), monkeypatch)
    assert len(millrace.MapDataset("gs://bucket/train/{000..002}.tar")) == 75
    assert buckets.shards_read() == before


def test_a_saved_index_of_samples(
    buckets: Buckets, millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "train.mri"
    pattern = "gs://bucket/train/{000..003}.tar"
    environment = {**os.environ, "STORAGE_EMULATOR_HOST": buckets.server.url}
    subprocess.run([millrace_bin, "index", pattern, "-o", place], check=True, env=environment, capture_output=True)
    about = subprocess.run([millrace_bin, "index", place], check=True, capture_output=True, text=True).stdout
    assert "gs://bucket/train/{000..003}.tar" in about and "samples    100 in 4 tar shards" in about
    described = subprocess.run(
        [millrace_bin, "index", "--json", place], check=True, capture_output=True, text=True
    ).stdout
    assert json.loads(described)["shards"] == 4
    before = buckets.shards_read()
    use(buckets.supervisor(f'[dataset.train]\nuri = "{pattern}"\nindex = "{place}"'), monkeypatch)
    ds = millrace.MapDataset("train")
    assert len(ds) == 100 and buckets.shards_read() == before
    assert read_all(ds) == buckets.samples
    # The index of other shards, and one of objects, are refused.
    other = '[dataset.train]\nuri = "gs://bucket/train/{000..002}.tar"\n' + f'index = "{place}"'
    use(buckets.supervisor(other), monkeypatch)
    with pytest.raises(ValueError, match="cannot be used: it is of"):
        len(millrace.MapDataset("train"))
    use(buckets.supervisor(f'[dataset.train]\nuri = "gs://bucket/train/"\nindex = "{place}"'), monkeypatch)
    with pytest.raises(ValueError, match="it is of samples in tar shards, and the data set of whole objects"):
        len(millrace.MapDataset("train"))


def test_a_resume_finds_the_samples_that_it_was_saved_over(buckets: Buckets, monkeypatch: pytest.MonkeyPatch) -> None:
    use(buckets.supervisor(), monkeypatch)
    ds = millrace.IterableDataset("gs://bucket/train/{000..003}.tar", shuffle=True)
    batches = iter(ds.batches(10))
    first = [plain(sample) for _ in range(3) for sample in next(batches)]
    state, digest = ds.state_dict(), ds.digest
    del batches
    (extra := buckets.root / "extra.tar").write_bytes((buckets.root / "bucket/train/000.tar").read_bytes())
    put(buckets.server.url, "bucket", "train/004.tar", extra.read_bytes())
    use(buckets.supervisor(), monkeypatch)
    later = millrace.IterableDataset("gs://bucket/train/{000..003}.tar", shuffle=True)
    later.load_state_dict(state)
    assert later.digest == digest
    rest = [plain(sample) for batch in later.batches(10) for sample in batch]
    assert sorted(map(str, first + rest)) == sorted(map(str, buckets.samples))


def test_a_shard_whose_name_needs_escapes_is_replaced(buckets: Buckets, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the sample stays in the message."""
    put(buckets.server.url, "bucket", "odd/a\\b\t.tar", (buckets.root / "bucket/train/000.tar").read_bytes())
    use(buckets.supervisor(), monkeypatch)
    ds = millrace.MapDataset("gs://bucket/odd/", format="tar", on_error="raise")
    assert len(ds) == 25
    put(buckets.server.url, "bucket", "odd/a\\b\t.tar", b"something else" * 100_000)
    with pytest.raises(
        millrace.ChangedError, match=r"^sample \S+, which begins at byte \d+ of its shard: gs://bucket/odd"
    ):
        ds[0]


def test_a_shard_that_is_replaced_while_it_is_read(buckets: Buckets, monkeypatch: pytest.MonkeyPatch) -> None:
    use(buckets.supervisor(), monkeypatch)
    ds = millrace.MapDataset("gs://bucket/train/{000..003}.tar", on_error="raise", window=1)
    assert plain(ds[0]) == buckets.samples[0]
    put(buckets.server.url, "bucket", "train/001.tar", b"something else" * 100_000)
    with pytest.raises(
        millrace.ChangedError, match=r"sample .*, which begins at byte \d+ of its shard: gs://bucket/train/001.tar"
    ):
        ds[25]
    delete(buckets.server.url, "bucket", "train/002.tar")
    with pytest.raises(FileNotFoundError, match=r"train/002\.tar"):
        ds[50]
    skipping = millrace.MapDataset("gs://bucket/train/{000..003}.tar", on_error="skip")
    assert [plain(sample) for sample in skipping.__getitems__([24, 25, 26, 75])] == [
        buckets.samples[24],
        buckets.samples[75],
    ]


# ---- bad shards ----


def index_error(path: Path, **arguments: Any) -> str:
    with pytest.raises((OSError, ValueError)) as caught:
        len(millrace.MapDataset(str(path), **arguments))
    return str(caught.value)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "a.tar"
    write_shard(path, make_samples(1, 20, 5000))
    return path


def read_to_the_damage(path: Path | str) -> tuple[Samples, str]:
    """The whole samples, and the error of the last entry; "skip" gives the samples alone."""
    ds = millrace.MapDataset(str(path))
    samples = [plain(ds[i]) for i in range(len(ds) - 1)]
    with pytest.raises(millrace.Error) as caught:
        ds[len(ds) - 1]
    assert read_all(millrace.IterableDataset(str(path), on_error="skip")) == samples
    return samples, str(caught.value)


def test_a_shard_that_is_cut(socket: str, shard: Path) -> None:
    whole, samples = shard.read_bytes(), make_samples(1, 20, 5000)
    with tarfile.open(shard) as tar:
        picture, label = tar.getmembers()[-2:]
    ends = "the archive ends inside of"
    for length, where, what in (
        (picture.offset_data + 1, picture.offset, f"{ends} {picture.name}, of {picture.size} bytes: it is cut short"),
        (label.offset_data, label.offset, f"{ends} {label.name}, of 2 bytes: it is cut short"),
        (label.offset + 100, label.offset, f"{ends} a header: it is cut short"),
    ):
        path = shard.with_name(f"{length}.tar")
        path.write_bytes(whole[:length])
        got, error = read_to_the_damage(path)
        assert got == samples[:19]
        assert error.startswith(f"{path.as_uri()}: byte {where}: {what}")
    shard.write_bytes(whole[: label.offset])  # between members: taken, with a warning
    assert len(millrace.MapDataset(str(shard))) == 20
    shard = shard.with_name("100.tar")
    shard.write_bytes(whole[:100])
    words = f"{shard.as_uri()}: 1 shards are there, and no sample in them is whole; of the first: byte 0"
    assert words in index_error(shard)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_damaged_shards_among_others(buckets: Buckets, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is cut and one with a bad header cost what is behind, whoever lists them, and each is named once."""
    for name, cut in (("train/001.tar", True), ("train/003.tar", False)):
        data = bytearray((buckets.root / "bucket" / name).read_bytes())
        with tarfile.open(buckets.root / "bucket" / name) as tar:
            member = tar.getmembers()[20]  # the eleventh sample's first
        data[member.offset + 5] ^= 0 if cut else 1
        put(buckets.server.url, "bucket", name, bytes(data[: member.offset_data] if cut else data))
    want = buckets.samples[:35] + buckets.samples[50:84]
    uri = f"{scheme}://bucket/train/{{000..003}}.tar"
    for listed in ("now", "before"):
        supervisor = buckets.supervisor()
        use(supervisor, monkeypatch)
        ds = millrace.IterableDataset(uri, on_error="skip")
        assert read_all(ds) == want
        assert len(read_all(millrace.IterableDataset(uri, on_error="replace"))) == len(want) + 2
        words = rf"^{scheme}://bucket/train/001.tar: byte \d+: the archive ends inside of "
        with pytest.raises(millrace.Error, match=words):
            list(millrace.IterableDataset(uri))
        log = supervisor.log.read_text()
        if listed == "now":
            assert log.count("train/001.tar: byte ") == log.count("train/003.tar: byte ") == 1, log
        assert "2 rests of damaged shards, whose reading is an error" in log
        gc.collect()


def test_shards_that_have_no_end_or_more_behind_it_are_named(
    supervisor: Supervisor, socket: str, shard: Path, tmp_path: Path
) -> None:
    whole = shard.read_bytes()
    with tarfile.open(shard) as tar:
        last = tar.getmembers()[-1]
    (tmp_path / "open.tar").write_bytes(whole[: last.offset_data + 512])
    (tmp_path / "two.tar").write_bytes(whole + whole)
    assert len(millrace.MapDataset([f"{tmp_path}/open.tar", f"{tmp_path}/two.tar"])) == 40
    write_shard(tmp_path / "large.tar", [{"__key__": b"%d" % i, "jpg": bytes(200_000)} for i in range(5)])
    large = (tmp_path / "large.tar").read_bytes()
    (tmp_path / "far.tar").write_bytes(large + bytes(51_200) + large)
    (tmp_path / "zeros.tar").write_bytes(large + bytes(1 << 20))
    assert len(millrace.MapDataset([f"{tmp_path}/far.tar", f"{tmp_path}/zeros.tar"])) == 10
    for n in range(12):
        shutil.copy(tmp_path / "open.tar", tmp_path / f"open-{n}.tar")
    assert len(millrace.MapDataset(f"{tmp_path}/open-{{0..11}}.tar")) == 240
    log = supervisor.log.read_text()
    assert "open.tar: it ends without the blocks of zeros that end an archive: was it written whole?" in log
    for name in ("two", "far"):  # at once, and behind more zeros than are read together with a header
        assert f"{name}.tar: there is more behind the end of its archive, which is left out" in log
    assert "zeros.tar:" not in log
    assert "2 more shards are damaged, have no end or more behind it" in log


def test_a_damaged_header(socket: str, shard: Path) -> None:
    data = bytearray(shard.read_bytes())
    with tarfile.open(shard) as tar:
        member = tar.getmembers()[7]
    data[member.offset + 3] ^= 1
    shard.write_bytes(data)
    got, error = read_to_the_damage(shard)
    assert got == make_samples(1, 20, 5000)[:3]
    assert f"byte {member.offset}: no tar header: its checksum does not fit" in error


def test_compressed_shards(socket: str, shard: Path) -> None:
    plain_bytes = shard.read_bytes()
    shard.write_bytes(gzip.compress(plain_bytes))
    assert "it is compressed (gzip): samples are read as ranges of plain tar archives" in index_error(shard)
    other = shard.parent / "under"
    other.mkdir()
    (other / "b.tar.gz").write_bytes(gzip.compress(plain_bytes))
    message = index_error(Path(f"{other}/"), format="tar")
    assert "b.tar.gz is compressed: samples are read as ranges of plain tar archives" in message


def test_a_sparse_member(socket: str, tmp_path: Path) -> None:
    with (tmp_path / "hole.bin").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x" * 4096)
    for format in ("gnu", "pax"):
        command = [
            "tar",
            "--sparse",
            f"--format={format}",
            "-C",
            str(tmp_path),
            "-cf",
            str(tmp_path / "a.tar"),
            "hole.bin",
        ]
        subprocess.run(command, check=True)
        assert "a sparse file: make the archive without --sparse" in index_error(tmp_path / "a.tar")


def test_pax_headers_of_megabytes_and_global_ones(socket: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.jpg")
        info.pax_headers = {"comment": "x" * (3 << 20)}
        tar.addfile(info)
    assert "a pax header of 31457" in index_error(path) and "more than 131072 are not read" in index_error(path)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"path": "all"}) as tar:
        add(tar, "a.jpg", b"1")
    assert "a global pax header with a path or a size: make the archive without it" in index_error(path)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "of all"}) as tar:
        add(tar, "a.jpg", b"1")
    assert len(millrace.MapDataset(str(path))) == 1


@pytest.mark.parametrize("twice", ["JPG", "__key__", "__URL__"])
def test_a_suffix_twice_in_one_sample(socket: str, tmp_path: Path, twice: str) -> None:
    """Also what each sample has: `sample["__key__"]`."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("a.jpg", "b.jpg", "b.cls", f"b.{twice}", "c.jpg"):
            add(tar, name, b"1")
    ds = millrace.MapDataset(f"{tmp_path}/a.tar")
    assert ds[0].key == "a"
    words = "its suffix is that of an earlier member of the sample"
    with pytest.raises(millrace.Error, match=f"a.tar: the sample 'b' cannot be taken apart: b.{twice}: {words}"):
        ds[1]
    rest = millrace.IterableDataset(f"{tmp_path}/a.tar", on_error="skip").batches(3)
    assert [sample.key for batch in rest for sample in batch] == ["a", "c"]


def test_bytes_that_changed_behind_the_version(socket: str, tmp_path: Path) -> None:
    """Of a sample that was streamed the checksum fails; of one that was hopped over, its headers do."""
    small, large = tmp_path / "small.tar", tmp_path / "large.tar"
    write_shard(small, make_samples(1, 20, 5000))
    write_shard(large, make_samples(2, 4, 900_000))
    for path, words in ((small, "crc32c"), (large, "no tar header: its checksum does not fit")):
        ds = millrace.MapDataset(str(path))
        assert len(ds) > 0
        before = path.stat()
        with tarfile.open(path) as tar:
            at = tar.getmembers()[4].offset
        with path.open("r+b") as file:
            file.seek(at + 1)
            file.write(b"#")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(OSError, match=words):
            list(ds)


def test_shards_that_are_not_there(socket: str, shard: Path, tmp_path: Path) -> None:
    assert "b.tar" in index_error(tmp_path / "b.tar")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "x.txt").write_text("x")
    message = index_error(Path(f"{tmp_path}/none/"), format="tar")
    assert "none/: 1 names are there, and none ends in .tar: there are no shards" in message
    (tmp_path / "empty.tar").write_bytes(b"")
    message = index_error(tmp_path / "empty.tar")
    assert f"file://{tmp_path}/empty.tar: 1 shards are there, and no sample is in them" in message


def test_a_shard_whose_name_begins_with_that_of_another(socket: str, tmp_path: Path) -> None:
    want = []
    for number, name in enumerate(("x.tar", "x.tar.tar")):
        samples = make_samples(number, 3, 100)
        write_shard(tmp_path / name, samples)
        want += samples
    assert read_all(millrace.MapDataset([f"{tmp_path}/x.tar.tar", f"{tmp_path}/x.tar"])) == want
    with pytest.raises(ValueError, match=r"a data set of shards .* and of what lies under other URIs"):
        len(millrace.MapDataset([f"{tmp_path}/x.tar", f"{tmp_path}/x.tar2"]))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("{000..}.tar", "a range that cannot be read"),
        ("{5..2}.tar", "a range that cannot be read"),
        ("{a}.tar", "braces without a range or a comma"),
        ("{a,{b,c}}.tar", "braces that do not pair, or lie in each other"),
        ("a}.tar", "braces that do not pair, or lie in each other"),
        ("{0..9999999}.tar", "more than a million shards"),
        ("{0..9999}{0..9999}.tar", "more than a million shards"),
        ("{0..1}{0..1}{0..1}{0..1}{0..1}{0..1}{0..1}{0..1}{0..1}.tar", "more than 8 pairs of braces"),
    ],
)
def test_patterns_that_cannot_be_read(socket: str, name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        millrace.MapDataset(f"file:///data/{name}")


def test_arguments(socket: str, shard: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format is 'zip', it must be one of 'objects', 'tar'"):
        millrace.MapDataset(str(shard), format="zip")
    with pytest.raises(ValueError, match="name shards alone, or folders alone"):
        millrace.MapDataset([str(shard), f"{tmp_path}/others/"])
    with pytest.raises(ValueError, match="in the name of a shard: there is no environment variable NO_SUCH"):
        millrace.MapDataset(f"{tmp_path}/${{NO_SUCH}}.tar")


def test_decompress_is_for_objects(socket: str, shard: Path) -> None:
    with pytest.raises(
        ValueError, match="decompress=True is for whole objects: a transform decompresses members of a shard"
    ):
        millrace.MapDataset(str(shard), decompress=True)[0]


def test_members_of_bytes_that_are_no_sample() -> None:
    from millrace._ring import members

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        add(tar, "a.jpg", b"1")
        add(tar, "b.jpg", b"1")
    with pytest.raises(millrace.Error, match=r"b.jpg: it belongs to another sample"):
        members(archive.getvalue())
    assert members(b"") == ("", {})
    with pytest.raises(millrace.Error):
        members(os.urandom(2048))
    item = millrace.Item(archive.getvalue()[:1024], "a")
    with pytest.raises(millrace.Error, match="the index is of another shard, which has 'a' there"):
        millrace.Sample(item, "z", "file:///x.tar")


def page_code(heading: str) -> str:
    """The first Python block under a heading of docs/shards.md."""
    page = (Path(__file__).parents[2] / "docs" / "shards.md").read_text()
    return page.split(f"## {heading}\n", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]


def test_decoders_of_the_page(socket: str, tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    image = pytest.importorskip("PIL.Image")
    jpg, npy = io.BytesIO(), io.BytesIO()
    image.new("RGB", (3, 2), (200, 0, 0)).save(jpg, "JPEG")
    numpy.save(npy, numpy.arange(6).reshape(2, 3))
    members = {"jpg": jpg.getvalue(), "npy": npy.getvalue(), "json": b'{"a": [1, 2]}'}
    write_shard(tmp_path / "a.tar", [{"__key__": b"k", **members}])
    asked: list[Any] = []

    class Webdataset:
        """Stands in for it: it gets a dict of bytes."""

        autodecode: Any

        @staticmethod
        def imagehandler(spec: str) -> str:
            return spec

        @staticmethod
        def Decoder(handlers: list[str]) -> Any:
            return lambda sample: asked.append((handlers, sample))

    Webdataset.autodecode = Webdataset
    names = {"io": io, "json": json, "numpy": numpy, "Image": image, "webdataset": Webdataset}
    exec(page_code("Decoders"), names)

    def through(function: str) -> Any:
        return millrace.MapDataset(f"{tmp_path}/a.tar", transform=names[function])[0]

    assert through("picture").size == (3, 2)
    assert through("array").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert through("labels") == {"a": [1, 2]}
    through("decoded")
    assert asked == [(["torchrgb"], {"__key__": "k", "__url__": f"file://{tmp_path}/a.tar", **members})]
