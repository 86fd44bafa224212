"""Programs that open a path: each reads from gs and s3 what it reads from a local copy, by millrace.open or fsspec."""

from __future__ import annotations

import importlib
import io
import os
import random
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy
import pandas
import pyarrow
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
import pytest
import webdataset

import millrace
from millrace import fs as millrace_fs

from .stores import Stores, bucket, running, stores

__all__ = ["bucket", "running", "stores"]

ROWS, COLUMNS = 200_000, 10
SAMPLES = 40


@pytest.fixture(scope="module")
def local(running: Stores, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files, which are in the bucket too."""
    folder = tmp_path_factory.mktemp("local")
    rng = numpy.random.default_rng(1)
    table = pyarrow.table({f"c{i}": rng.standard_normal(ROWS) for i in range(COLUMNS)})
    pyarrow.parquet.write_table(table, folder / "table.parquet", row_group_size=50_000)
    for part in range(3):
        (folder / "parts").mkdir(exist_ok=True)
        pyarrow.parquet.write_table(table.slice(part * 1000, 1000), folder / "parts" / f"{part}.parquet")
    with h5py.File(folder / "data.h5", "w") as out:
        out.create_dataset("x", data=rng.standard_normal((2000, 300)), chunks=(50, 300))
    (folder / "shards").mkdir()
    for shard in range(2):
        with tarfile.open(folder / "shards" / f"{shard}.tar", "w") as tar:
            for i in range(SAMPLES // 2):
                for suffix, data in ("bin", random.Random(shard * 100 + i).randbytes(30_000)), ("cls", b"%d" % i):
                    info = tarfile.TarInfo(f"{shard}-{i:03}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    for path in folder.rglob("*"):
        if path.is_file():
            running.put(str(path.relative_to(folder)), path.read_bytes())
    return folder


def test_one_column_of_ten(stores: Stores, bucket: str, local: Path) -> None:
    before = len(stores.answers("table.parquet"))
    got = pandas.read_parquet(f"millrace+{bucket}/table.parquet", columns=["c7"])
    assert got.equals(pandas.read_parquet(local / "table.parquet", columns=["c7"]))
    asked, size = sum(stores.answers("table.parquet")[before:]), (local / "table.parquet").stat().st_size
    assert asked < 0.16 * size  # the column, the directory, and 128 KiB at the start


def test_pandas_writes_what_it_reads(stores: Stores, bucket: str) -> None:
    frame = pandas.DataFrame({"a": range(1000), "b": [f"ü{i}" for i in range(1000)]})
    frame.to_csv(f"millrace+{bucket}/frame.csv.gz", index=False)
    assert pandas.read_csv(f"millrace+{bucket}/frame.csv.gz").equals(frame)
    frame.to_parquet(f"millrace+{bucket}/frame.parquet")
    with millrace.open(f"{bucket}/frame.parquet") as file:
        assert pandas.read_parquet(file).equals(frame)


def test_pyarrow_datasets(stores: Stores, bucket: str, local: Path) -> None:
    system = fsspec.filesystem(f"millrace+{bucket[:2]}")
    got = pyarrow.dataset.dataset("bucket/parts", filesystem=system, format="parquet")
    same = pyarrow.dataset.dataset(local / "parts", format="parquet")
    assert got.to_table(columns=["c3"], filter=pyarrow.dataset.field("c1") > 0) == same.to_table(
        columns=["c3"], filter=pyarrow.dataset.field("c1") > 0
    )
    arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(system))
    (info,) = arrow.get_file_info(["bucket/parts/0.parquet"])
    assert (info.size, info.is_file) == ((local / "parts" / "0.parquet").stat().st_size, True)
    pyarrow.dataset.write_dataset(same, f"bucket/out-{bucket[:2]}", filesystem=system, format="parquet")
    back = pyarrow.dataset.dataset(f"bucket/out-{bucket[:2]}", filesystem=system).to_table()
    assert back.sort_by("c0") == same.to_table().sort_by("c0")


def test_hdf5(bucket: str, local: Path) -> None:
    with h5py.File(local / "data.h5") as same, millrace.open(f"{bucket}/data.h5") as file, h5py.File(file) as got:
        assert (got["x"][1234:1300] == same["x"][1234:1300]).all()


def samples(source: Any) -> list[tuple[str, bytes, bytes]]:
    return sorted((sample["__key__"], sample["bin"], sample["cls"]) for sample in source)


@pytest.fixture
def wanted(local: Path) -> list[tuple[str, bytes, bytes]]:
    shards = [str(path) for path in sorted((local / "shards").iterdir())]
    return samples(webdataset.WebDataset(shards, shardshuffle=False))


def test_webdataset_through_a_pipe(
    bucket: str, wanted: list[tuple[str, bytes, bytes]], millrace_bin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{millrace_bin.parent}{os.pathsep}{os.environ['PATH']}")
    got = webdataset.WebDataset(f"pipe:millrace cat {bucket}/shards/{{0..1}}.tar", shardshuffle=False)
    assert samples(got) == wanted
    assert len(list(got.slice(3))) == 3  # it closes the pipe early, and takes any status but 0 for a failure


def test_webdataset_by_our_opener(
    bucket: str, wanted: list[tuple[str, bytes, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    schemes = importlib.import_module("webdataset.gopen").gopen_schemes
    monkeypatch.setitem(schemes, bucket[:2], lambda url, mode="rb", bufsize=0, **_: millrace.open(url, mode))
    assert samples(webdataset.WebDataset(f"{bucket}/shards/{{0..1}}.tar", shardshuffle=False)) == wanted


def test_hugging_face(
    bucket: str, wanted: list[tuple[str, bytes, bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HF_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    import datasets

    for streaming in (True, False):
        got = datasets.load_dataset(
            "webdataset",
            data_files=f"millrace+{bucket}/shards/*.tar",
            split="train",
            streaming=streaming,
            cache_dir=str(tmp_path / "cache"),
        )
        found = sorted((sample["__key__"], sample["bin"], str(sample["cls"]).encode()) for sample in got)
        assert found == wanted


REGISTERED = """
import sys, fsspec, millrace.fs
millrace.fs.register(sys.argv[1])
with fsspec.open(sys.argv[2]) as file:
    sys.stdout.buffer.write(file.read())
"""


def test_by_the_plain_schemes(bucket: str, local: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REGISTERED, bucket[:2], f"{bucket}/data.h5"], capture_output=True, check=True
    )
    assert done.stdout == (local / "data.h5").read_bytes()
    with pytest.raises(ValueError, match="not a scheme"):
        millrace_fs.register("http")
