"""millrace.open(): what a local file gives, from a store, with the requests that it takes."""

from __future__ import annotations

import csv
import gc
import gzip
import io
import json
import os
import pickle
import random
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
import torch

import millrace
from millrace import fs
from tests.devstore.s3 import client

from .helpers import reads_alike
from .stores import MIB, Stores, bucket, running, stores, without_supervisor

__all__ = ["bucket", "running", "stores"]

BLOCK = MIB  # of this supervisor's small arena
LINES = [f"{i},{'x' * (i * 37 % 900)},ü" for i in range(3000)]


@pytest.fixture(scope="module")
def large(running: Stores) -> bytes:
    data = random.Random(1).randbytes(12 * BLOCK + 12345)
    running.put("large", data)
    return data


@pytest.mark.random
@pytest.mark.parametrize("seed", range(12))
def test_it_reads_as_a_local_file_does(bucket: str, large: bytes, seed: int) -> None:
    with millrace.open(f"{bucket}/large") as file:
        assert (file.size, file.name, file.mode, file.tell()) == (len(large), f"{bucket}/large", "rb", 0)
        reads_alike(file, io.BytesIO(large), len(large), BLOCK, seed)


# ---- requests ----


def test_random_reads_ask_for_their_own_bytes(stores: Stores, bucket: str, large: bytes) -> None:
    rng = random.Random(2)
    before = len(stores.answers("large"))
    with millrace.open(f"{bucket}/large") as file:
        for offset in rng.sample(range(1000, len(large) - 5000, 5000), 50):
            file.seek(offset)
            assert file.read(4096) == large[offset : offset + 4096]
    assert stores.answers("large")[before:] == [4096] * 50


def test_forward_reads_ask_ahead_and_for_each_byte_once(stores: Stores, bucket: str, large: bytes) -> None:
    before = len(stores.answers("large"))
    with millrace.open(f"{bucket}/large") as file:
        while file.read(10_000):
            pass
    asked = stores.answers("large")[before:]
    assert sum(asked) == len(large)
    assert len(asked) < 30
    assert max(asked) == BLOCK


def test_an_object_with_aws_s_own_checksum_is_read_again(stores: Stores) -> None:
    """CRC64NVME, compared where the whole object is one request: ranges are told apart by their crc32c all the same."""
    data = random.Random(4).randbytes(BLOCK - 1000)
    client(stores.server).put_object(Bucket="bucket", Key="crc64", Body=data, ChecksumAlgorithm="CRC64NVME")
    with millrace.open("s3://bucket/crc64") as file:
        for at in range(0, len(data), 100_000):
            file.seek(at)
            assert file.read(100_000) == data[at : at + 100_000]
        file.seek(0)
        assert file.read() == data
    assert stores.answers("crc64")[-1] == len(data)


def test_a_look_at_the_start_is_no_download(stores: Stores, bucket: str, large: bytes) -> None:
    before = len(stores.answers("large"))
    with millrace.open(f"{bucket}/large") as file:
        assert file.read(16) == large[:16]
    assert stores.answers("large")[before:] == [128 << 10]
    before = len(stores.answers("large"))
    with millrace.open(f"{bucket}/large") as file:
        assert file.read(700_000) == large[:700_000]
    assert stores.answers("large")[before:] == [700_000]


# ---- who takes files ----


def test_libraries_read_it(stores: Stores, bucket: str, tmp_path: Path) -> None:
    array = numpy.arange(100_000, dtype="int32").reshape(100, 1000)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for i in range(20):
            archive.writestr(f"{i}", bytes([i]) * 100_000)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as out:
        for i in range(20):
            info = tarfile.TarInfo(f"{i}")
            info.size = 50_000
            out.addfile(info, io.BytesIO(bytes([i]) * 50_000))
    saved, plain = io.BytesIO(), io.BytesIO()
    torch.save({"a": torch.arange(1_000_000)}, saved)
    numpy.save(plain, array)
    for name, data in {"zip": packed, "tar": tar, "npy": plain, "pt": saved}.items():
        stores.put(name, data.getvalue())
    stores.put("short", b"PK")
    stores.put("csv.gz", gzip.compress("\n".join(LINES).encode()))
    with millrace.open(f"{bucket}/npy") as file:
        assert (numpy.load(file) == array).all()
    with millrace.open(f"{bucket}/short") as file:
        assert not zipfile.is_zipfile(file)
    with millrace.open(f"{bucket}/zip") as file, zipfile.ZipFile(file) as archive:
        assert archive.read("17") == bytes([17]) * 100_000
    with millrace.open(f"{bucket}/tar") as file, tarfile.open(fileobj=file) as read:
        member = read.extractfile("19")
        assert member is not None and member.read() == bytes([19]) * 50_000
    with millrace.open(f"{bucket}/pt") as file:
        assert torch.load(file, weights_only=True, mmap=False)["a"][-1] == 999_999
    with millrace.open(f"{bucket}/csv.gz") as file, gzip.open(file, "rt", encoding="utf-8") as text:
        assert text.read().splitlines() == LINES


def test_text(stores: Stores, bucket: str) -> None:
    uri = f"{bucket}/text.csv"
    with millrace.open(uri, "w", newline="") as file:
        csv.writer(file).writerows(line.split(",") for line in LINES)
    with millrace.open(uri, "rt", newline="") as file:
        assert [",".join(row) for row in csv.reader(file)] == LINES
    with millrace.open(uri, "r") as file:
        assert next(file) == LINES[0] + "\n"
        file.seek(0)
        assert len(file.readlines()) == len(LINES)
    with millrace.open(uri) as raw:
        assert b"".join(raw) == "".join(f"{line}\r\n" for line in LINES).encode()
    with millrace.open(uri, "rt", encoding="ascii") as file, pytest.raises(UnicodeDecodeError):
        file.read()
    with millrace.open(uri, "rt", encoding="ascii", errors="replace") as file:
        assert "\N{REPLACEMENT CHARACTER}" in file.readline()


# ---- writing ----


def test_what_is_written_is_there_whole_or_not_at_all(stores: Stores, bucket: str) -> None:
    uri = f"{bucket}/written-{bucket[:2]}"
    with millrace.open(uri, "wb") as file:
        assert (file.name, file.mode) == (uri, "wb")
        file.write(b"one")
        with pytest.raises(FileNotFoundError):
            millrace.open(uri)
    with millrace.open(uri) as file:
        assert file.read() == b"one"
    for mode, data in (("wb", b"two"), ("w", "two")):
        with pytest.raises(ZeroDivisionError), millrace.open(uri, mode) as broken:
            broken.write(data)
            raise ZeroDivisionError
    forgotten = millrace.open(uri, "w")
    forgotten.write("two")
    with pytest.warns(ResourceWarning, match="nothing has been saved"):
        del forgotten
    with millrace.open(uri) as file:
        assert file.read() == b"one"
    with pytest.raises(FileExistsError), millrace.open(uri, "xb") as exclusive:
        exclusive.write(b"two")
    with millrace.open(uri + "-new", "x") as text:
        text.write("three")
    with millrace.open(uri + "-new", "rt") as text:
        assert text.read() == "three"


def test_several_are_written_at_once(stores: Stores, bucket: str) -> None:
    files = [millrace.open(f"{bucket}/at-once-{i}", "wb") for i in range(3)]
    for i, file in enumerate(files):
        file.write(bytes([i]) * MIB)
    for i, file in enumerate(files):
        file.close()
        with millrace.open(f"{bucket}/at-once-{i}") as back:
            assert back.read() == bytes([i]) * MIB


# ---- what is wrong ----


def test_modes_that_are_not_there(stores: Stores) -> None:
    for mode in ("ab", "r+b", "rbt", "", "rw", "rU", "q"):
        with pytest.raises(ValueError, match="rb, wb, xb and rt, wt, xt"):
            millrace.open("gs://bucket/x", mode)
    with pytest.raises(ValueError, match="binary and takes no encoding"):
        millrace.open("gs://bucket/x", "rb", encoding="utf-8")
    with pytest.raises(ValueError, match="http:// is not known"):
        millrace.open("http://host/x")
    with pytest.raises(ValueError, match="names no object"):
        millrace.open("gs://bucket/folder/")


@pytest.mark.parametrize("wrong", [{"encoding": "none"}, {"newline": "x"}], ids=["encoding", "newline"])
@pytest.mark.parametrize("mode", ["r", "w"])
def test_text_that_cannot_be(
    bucket: str, large: bytes, caplog: pytest.LogCaptureFixture, mode: str, wrong: dict[str, str]
) -> None:
    """Nothing is left open behind it."""
    with pytest.raises((LookupError, ValueError), match=r"unknown encoding|illegal newline"):
        millrace.open(f"{bucket}/large", mode, **wrong)
    gc.collect()
    assert "never closed" not in caplog.text
    with millrace.open(f"{bucket}/large") as file:
        assert file.read(10) == large[:10]


def test_an_object_that_changes(stores: Stores, bucket: str) -> None:
    stores.put("changing", bytes(4 * MIB))
    with millrace.open(f"{bucket}/changing") as file:
        file.read(1)
        stores.put("changing", bytes(4 * MIB - 1) + b"1")
        file.seek(3 * MIB)
        with pytest.raises(millrace.ChangedError, match="changing"):
            file.read(10)


def test_a_closed_file(bucket: str, large: bytes) -> None:
    file = millrace.open(f"{bucket}/large")
    file.close()
    file.close()
    assert "closed" in repr(file)
    for use in (file.read, file.readline, file.tell, lambda: pickle.dumps(file)):
        with pytest.raises(ValueError, match="closed file of"):
            use()


# ---- other processes ----


def test_it_pickles_as_its_uri(stores: Stores, bucket: str, large: bytes) -> None:
    with millrace.open(f"{bucket}/large") as file:
        file.seek(1000)
        with pickle.loads(pickle.dumps(file)) as again:
            assert again.read(10) == file.read(10) == large[1000:1010]
    stores.put("lines", "\n".join(LINES).encode())
    with millrace.open(f"{bucket}/lines", "rt") as text:
        for _ in range(7):
            text.readline()
        with pickle.loads(pickle.dumps(text)) as more:
            assert more.readline() == text.readline() == LINES[7] + "\n"
    writer = millrace.open(f"{bucket}/never", "w")
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(writer)
    with pytest.raises(ZeroDivisionError), writer:
        raise ZeroDivisionError


class Opened(torch.utils.data.Dataset):
    """Opens its object where it is read."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> tuple[bytes, int]:
        with millrace.open(self.uri) as file:
            file.seek(i * 1000)
            assert file._opened is not None
            supervisor = file._opened.connection.client.pid
            with millrace.open(f"{self.uri}-{i}", "w") as copy:
                copy.write("x")
            return file.read(10), supervisor


@pytest.mark.parametrize("private", [False, True])
def test_in_workers(
    stores: Stores, large: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, private: bool
) -> None:
    """Those of one loader share a supervisor, also where nobody has started one."""
    if private:
        without_supervisor(monkeypatch, tmp_path)
    loader = torch.utils.data.DataLoader(Opened("gs://bucket/large"), num_workers=2, batch_size=None)
    read = list(loader)
    assert [data for data, _ in read] == [large[i * 1000 : i * 1000 + 10] for i in range(8)]
    assert len({supervisor for _, supervisor in read}) == 1


def test_threads_that_come_together_start_one(
    stores: Stores, large: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_supervisor(monkeypatch, tmp_path)

    def look(_: int) -> int:
        with millrace.open("gs://bucket/large") as file:
            assert file._opened is not None
            return file._opened.connection.client.pid

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(look, range(8)))) == 1


def test_a_local_file(stores: Stores, tmp_path: Path) -> None:
    with millrace.open(tmp_path / "x.json", "w") as file:
        json.dump(LINES, file)
    with millrace.open(f"file://{tmp_path}/x.json", "r") as file:
        assert json.load(file) == LINES
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == LINES


def test_a_local_name_that_is_not_utf8(stores: Stores, tmp_path: Path) -> None:
    folder = os.fsdecode(bytes(tmp_path) + b"/fol\xffder")
    Path(folder).mkdir()
    name = folder + os.fsdecode(b"/na\xfeme")
    with millrace.open(f"file://{name}", "wb") as out:
        out.write(b"data")
    assert Path(name).read_bytes() == b"data"
    with millrace.open(f"file://{name}") as file:
        assert file.read() == b"data" and file.name == f"file://{name}"
    system = fs.LocalFileSystem()
    assert system.find(folder) == [name]
    assert system.cat_ranges([name, f"{folder}/none"], 0, 2)[0] == b"da"
    dataset = millrace.MapDataset(f"file://{folder}/")
    assert dataset.objects[0][0] == name and bytes(dataset[0]) == b"data"
