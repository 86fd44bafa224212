"""Sidecars of tar shards (DALI's .idx, tarindexer's .tar.index) and `millrace index --checksums`."""

from __future__ import annotations

import gc
import io
import json
import os
import pty
import re
import select
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import millrace
from tests.conftest import StartDevstore
from tests.python.shards import Samples, make_samples, read_all, write_shard
from tests.serve import DEADLINE_S, start_supervisor
from tests.stores import put

SHARDS, SAMPLES = 3, 40


def members(shard: Path) -> list[tarfile.TarInfo]:
    with tarfile.open(shard) as tar:
        return [each for each in tar if each.isfile()]


def write_idx(shard: Path) -> None:
    """As DALI's wds2idx."""
    lines: list[str] = []
    last = None
    for each in members(shard):
        folder, _, name = each.name.rpartition("/")
        key, _, suffix = name.partition(".")
        text = f"{suffix} {each.offset_data} {each.size} {each.name}"
        if (folder, key) == last:
            lines[-1] += " " + text
        else:
            lines.append(text)
        last = (folder, key)
    shard.with_suffix(".idx").write_text(f"v1.2 {len(lines)}\n" + "\n".join(lines) + "\n")


def write_index(shard: Path) -> None:
    """As tarindexer."""
    lines = [f"{each.name} {each.offset_data} {each.size}\n" for each in members(shard)]
    shard.with_suffix(".tar.index").write_text("".join(lines))


def write_pax(shard: Path, samples: Samples) -> None:
    """As webdataset's writer: its times are fractions, so that each member has a pax header."""
    with tarfile.open(shard, "w") as tar:
        for sample in samples:
            for suffix, data in sample.items():
                info = tarfile.TarInfo(f"{sample['__key__'].decode()}.{suffix}")
                info.size, info.mtime = len(data), time.time() + 0.25
                if suffix != "__key__":
                    tar.addfile(info, io.BytesIO(data))


def make(folder: Path, size: int, write: Callable[[Path, Samples], Any] = write_shard) -> Samples:
    everything = []
    for n in range(SHARDS):
        samples = make_samples(n, SAMPLES, size)
        write(folder / f"{n:03d}.tar", samples)
        everything += samples
    return everything


def shards_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tar"))


class Indexed:
    """What `millrace index` says of the shards of a folder; a fresh one each time."""

    def __init__(self, millrace_bin: Path, folder: Path, *options: str, uri: str = "", **env: str) -> None:
        place = folder / "out.mri"
        environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "none"), **env}
        pattern = uri or f"file://{folder}/{{000..{SHARDS - 1:03d}}}.tar"
        arguments = [str(millrace_bin), "index", *options, pattern, "-o", str(place)]
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        self.log = done.stderr
        about = subprocess.run([millrace_bin, "index", "--json", place], check=True, capture_output=True).stdout
        self.about = json.loads(about)
        self.requests = int(self.about["requests"])
        self.program, self.folder = millrace_bin, folder
        self.toml = f'[dataset.train]\nuri = "{pattern}"\nindex = "{place}"\n'

    @contextmanager
    def opened(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[millrace.MapDataset]:
        """The data set with this index."""
        run = self.folder / "run"
        run.mkdir()
        supervisor = start_supervisor(self.program, run, "http://127.0.0.1:9", self.toml)
        monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
        try:
            yield millrace.MapDataset("train")
        finally:
            gc.collect()
            assert supervisor.stop() == 0, supervisor.log.read_text()

    def samples(self, monkeypatch: pytest.MonkeyPatch) -> Samples:
        with self.opened(monkeypatch) as ds:
            return read_all(ds)


@pytest.mark.parametrize("write_sidecar", [write_idx, write_index])
@pytest.mark.parametrize(
    ("size", "write"),
    [(400_000, write_shard), (400_000, write_pax), (60_000, write_pax)],
    ids=["hops", "pax", "streams"],
)
def test_members_are_taken_from_sidecars(
    millrace_bin: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    size: int,
    write: Any,
    write_sidecar: Callable[[Path], None],
) -> None:
    samples = make(tmp_path, size, write)
    plain = Indexed(millrace_bin, tmp_path)
    for shard in shards_of(tmp_path):
        write_sidecar(shard)
    indexed = Indexed(millrace_bin, tmp_path)
    assert "of 3 of 3 shards the members are known by their sidecars" in indexed.log
    assert indexed.samples(monkeypatch) == samples
    assert indexed.about["objects"] == plain.about["objects"] and indexed.about["bytes"] == plain.about["bytes"]
    if size > 100_000:
        assert plain.requests > SHARDS * SAMPLES * 0.6  # those of less than 12 KiB come with the header before them
        # A shard: looked up, its first window, its sidecar (looked up, read), its middle member, its last one and what
        # follows; and one look-up of the other kind.
        assert indexed.requests <= SHARDS * 7 + 1, indexed.log


def damage_name(text: str) -> str:
    return re.sub(r"\.jpg\b", ".png", text)


def damage_size(text: str) -> str:
    """The last member is a byte longer."""
    lines = text.splitlines()
    words = lines[-1].split()
    words[-2] = str(int(words[-2]) + 1)
    return "\n".join([*lines[:-1], " ".join(words)]) + "\n"


def damage_more(text: str) -> str:
    """Without the last member, which the shard has."""
    _, *lines = text.splitlines()
    return "\n".join([f"v1.2 {len(lines) - 1}", *lines[:-1]]) + "\n"


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (damage_name, "there should be"),
        (damage_size, "there should be"),
        (damage_more, "is not in it"),
        (lambda text: text[: text.index("\n", len(text) // 2)], "where its first line says 40"),
        (lambda text: "\0\0\0\0", "not text"),
        (lambda text: "", "0 bytes are not a list of members"),
    ],
    ids=["name", "size", "fewer", "cut", "binary", "empty"],
)
def test_a_sidecar_that_does_not_fit_is_refused_by_name(
    millrace_bin: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: Callable[[str], str], why: str
) -> None:
    samples = make(tmp_path, 400_000)
    for shard in shards_of(tmp_path):
        write_idx(shard)
    sidecar = tmp_path / "001.idx"
    text = damage(sidecar.read_text())
    sidecar.write_text(text)
    indexed = Indexed(millrace_bin, tmp_path)
    assert indexed.samples(monkeypatch) == samples
    assert re.search(rf"001\.tar: its sidecar 001\.idx does not fit \(.*{why}", indexed.log), indexed.log
    assert "of 2 of 3 shards the members are known" in indexed.log


def test_a_sidecar_of_a_shard_that_was_replaced(
    millrace_bin: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make(tmp_path, 400_000)
    for shard in shards_of(tmp_path):
        write_idx(shard)
    new = make_samples(9, SAMPLES, 300_000)
    write_shard(tmp_path / "001.tar", new)
    indexed = Indexed(millrace_bin, tmp_path)
    assert indexed.samples(monkeypatch)[SAMPLES : 2 * SAMPLES] == new
    assert "001.tar: its sidecar 001.idx does not fit" in indexed.log


def test_sidecars_of_a_store(millrace_bin: Path, devstore: StartDevstore, tmp_path: Path) -> None:
    """Looked for once where there are none, and not at all for a shard that its first window has whole."""
    folder = tmp_path / "root" / "bucket" / "large"
    make(folder, 400_000)
    make(folder.parent / "small", 1_000)
    log = tmp_path / "log"
    server = devstore("--root", tmp_path / "root", "--log", log)
    pattern = f"{{000..{SHARDS - 1:03d}}}.tar"

    def index(name: str) -> Indexed:
        log.write_text("")
        return Indexed(
            millrace_bin, folder, "-q", uri=f"gs://bucket/{name}/{pattern}", STORAGE_EMULATOR_HOST=server.url
        )

    index("small")
    assert ".idx" not in log.read_text() and ".index" not in log.read_text()
    index("large")
    assert len(re.findall(r"\.idx", log.read_text())) == len(re.findall(r"\.tar\.index", log.read_text())) == 1
    for shard in shards_of(folder):
        write_index(shard)
        sidecar = shard.with_suffix(".tar.index")
        put(server.url, "bucket", f"large/{sidecar.name}", sidecar.read_bytes())
    assert index("large").requests <= SHARDS * 7 + 1


# ---- checksums ----


def test_checksums_of_all_samples(millrace_bin: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    samples = make(tmp_path, 400_000)
    for shard in shards_of(tmp_path):
        write_idx(shard)
    indexed = Indexed(millrace_bin, tmp_path, "--checksums")
    assert "sidecar" not in indexed.log
    shard = tmp_path / "001.tar"
    whole = bytearray(shard.read_bytes())
    status = shard.stat()
    whole[members(shard)[-2].offset_data + 5] ^= 1
    shard.write_bytes(whole)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))  # the same version, as far as anybody can see
    with indexed.opened(monkeypatch) as ds:
        with pytest.raises(millrace.Error, match=r"001\.tar"):
            ds[2 * SAMPLES - 1]
        assert ds[2 * SAMPLES - 2]["jpg"] == samples[2 * SAMPLES - 2]["jpg"]


def test_checksums_of_large_members_and_of_the_last_one(
    millrace_bin: Path, devstore: StartDevstore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Read in windows, however large a member is, also where the archive ends with the last one's data."""
    bucket = tmp_path / "root" / "bucket"
    bucket.mkdir(parents=True)
    shard = bucket / "a.tar"
    write_shard(shard, [{"__key__": b"%d" % i, "bin": bytes([i]) * 5_000_000} for i in range(3)])
    last = members(shard)[-1]
    os.truncate(shard, last.offset_data + last.size)
    log = tmp_path / "log"
    server = devstore("--root", tmp_path / "root", "--log", log)
    Indexed(millrace_bin, tmp_path, "--checksums", uri="gs://bucket/a.tar", STORAGE_EMULATOR_HOST=server.url)
    asked = [int(line.split()[-1]) for line in log.read_text().splitlines() if "alt=media" in line]
    assert sum(asked) >= shard.stat().st_size and max(asked) <= 1 << 20
    indexed = Indexed(millrace_bin, tmp_path, "--checksums", uri=f"file://{shard}")
    status = shard.stat()
    with shard.open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"x")
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    with indexed.opened(monkeypatch) as ds:
        assert len(ds[1]["bin"]) == 5_000_000
        with pytest.raises(millrace.Error, match=r"a\.tar"):
            ds[2]


def test_checksums_are_of_shards_and_need_a_place(millrace_bin: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    for arguments, text in (
        ([f"file://{tmp_path}/", "-o", str(tmp_path / "x.mri")], "--checksums is for tar shards"),
        ([f"file://{tmp_path}/a.tar"], "--output"),
    ):
        done = subprocess.run(
            [millrace_bin, "index", "--checksums", *arguments], capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode == 2 and text in done.stderr, done.stderr


# ---- progress ----


def test_progress_on_a_terminal(millrace_bin: Path, devstore: StartDevstore, tmp_path: Path) -> None:
    folder = tmp_path / "root" / "bucket"
    make(folder, 400_000)
    server = devstore("--root", tmp_path / "root", "--latency-ms", "100")
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [millrace_bin, "index", "gs://bucket/{000..002}.tar", "-o", tmp_path / "x.mri"],
        env={**os.environ, "STORAGE_EMULATOR_HOST": server.url, "XDG_CACHE_HOME": str(tmp_path / "none")},
        stderr=slave,
    )
    os.close(slave)
    seen = b""
    deadline = time.monotonic() + DEADLINE_S
    while not re.search(rb"\[=+ *\] +\d+%  \d of 3 shards, \d+ samples, [^,]+, \d+ requests", seen):
        assert time.monotonic() < deadline, seen
        if select.select([master], [], [], 0.2)[0]:
            seen += os.read(master, 4096)  # an error at the end, when all is read
    process.kill()
    process.wait(DEADLINE_S)
    os.close(master)
