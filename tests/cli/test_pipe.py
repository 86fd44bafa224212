"""`millrace pipe`: objects through a FIFO an epoch."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import StartDevstore
from tests.serve import DEADLINE_S, wait_for
from tests.stores import put

MIB = 1 << 20
NAMES = [f"train/{i:03}" for i in range(60)]


@pytest.fixture
def contents(devstore: StartDevstore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What is in gs://bucket and s3://bucket."""
    rng = random.Random(3)
    found = {name: rng.randbytes(rng.randrange(20_000)) for name in NAMES}
    found |= {"large": rng.randbytes(20 * MIB + 7), "huge": bytes(100 * MIB), "train/empty": b"", "other": b"x"}
    for name, data in found.items():
        path = tmp_path / "root" / "bucket" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "root" / "odd").mkdir()
    url = devstore("--root", tmp_path / "root").url
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
    for name, value in (("ACCESS_KEY_ID", "id"), ("SECRET_ACCESS_KEY", "secret"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    return found


class Pipe:
    """`millrace pipe ... --fifo fifo` in a folder."""

    def __init__(self, program: Path, folder: Path, *arguments: str) -> None:
        folder.mkdir()
        self.folder = folder
        command = [str(program), "pipe", *arguments, "--fifo", str(folder / "fifo")]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE)

    def open(self, epoch: int) -> int:
        path = self.folder / f"fifo_{epoch}"
        wait_for(lambda: path.exists() or self.process.poll() is not None)
        assert stat.S_ISFIFO(path.stat().st_mode)
        return os.open(path, os.O_RDONLY)

    def read(self, epoch: int) -> bytes:
        with os.fdopen(self.open(epoch), "rb") as file:
            return file.read()

    def end(self) -> tuple[int, bytes]:
        """Status and messages; nothing is left in the folder."""
        status = self.process.wait(DEADLINE_S)
        assert self.process.stderr is not None
        errors = self.process.stderr.read()
        self.process.stderr.close()
        assert list(self.folder.iterdir()) == []
        return status, errors


Start = Callable[..., Pipe]


@pytest.fixture
def start(millrace_bin: Path, tmp_path: Path, contents: dict[str, bytes]) -> Start:
    count = iter(range(9))

    def made(*arguments: str) -> Pipe:
        return Pipe(millrace_bin, tmp_path / f"here-{next(count)}", *arguments)

    return made


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_all_bytes_in_order(start: Start, contents: dict[str, bytes], scheme: str) -> None:
    pipe = start(f"{scheme}://bucket/train/", f"{scheme}://bucket/large")
    names = sorted(name for name in contents if name.startswith("train/"))
    assert pipe.read(0) == b"".join(contents[name] for name in [*names, "large"])
    assert pipe.end() == (0, b"")


def test_names_that_end_in_a_slash(start: Start) -> None:
    """A marker of a folder is left out, and not an object that has bytes; nor is what a run is composing now."""
    for name, data in (("a/", b""), ("a/slash/", b"123"), ("a/z", b"4"), ("dataflux-composed-objects/x", b"5")):
        put(os.environ["STORAGE_EMULATOR_HOST"], "odd", name, data)
    pipe = start("gs://odd/")
    assert pipe.read(0) == b"1234"
    assert pipe.end() == (0, b"")


def split(data: bytes, contents: dict[str, bytes]) -> list[str]:
    """The names whose bytes these are, in their order."""
    found = []
    while data:
        name = next(name for name in NAMES if contents[name] and data.startswith(contents[name]))
        data = data[len(contents[name]) :]
        found.append(name)
    return found


def test_epochs_have_orders_of_their_own(start: Start, contents: dict[str, bytes]) -> None:
    orders = []
    for seed in ("7", "7", "8"):
        pipe = start("gs://bucket/train/", "--epochs", "2", "--shuffle", "--seed", seed)
        orders.append([split(pipe.read(epoch), contents) for epoch in range(2)])
        assert pipe.end() == (0, b"")
    assert all(sorted(order) == [name for name in NAMES if contents[name]] for pair in orders for order in pair)
    assert orders[0] == orders[1]
    assert len({tuple(order) for pair in orders[1:] for order in pair}) == 4


def test_a_reader_that_has_enough_ends_the_epoch(start: Start, contents: dict[str, bytes]) -> None:
    pipe = start("gs://bucket/large", "--epochs", "3")
    for epoch in range(2):
        fd = pipe.open(epoch)
        assert os.read(fd, 10) == contents["large"][:10]
        os.close(fd)
    assert pipe.read(2) == contents["large"]
    assert pipe.end() == (0, b"")


def test_what_is_not_there(start: Start) -> None:
    assert start("gs://bucket/train/", "gs://bucket/none").end() == (
        1,
        b"millrace pipe: nothing matches gs://bucket/none\n",
    )
    status, errors = start("gs://no-such-bucket/", "--json").end()
    assert status == 1 and json.loads(errors)["code"] == "not found"


def test_an_object_that_changes_meanwhile(start: Start, millrace_bin: Path) -> None:
    """What the reader gets ends there, before the next object, and the status says so."""
    pipe = start("gs://bucket/huge", "gs://bucket/other")
    fd = pipe.open(0)
    read = len(os.read(fd, 10))
    subprocess.run([millrace_bin, "cp", "-", "gs://bucket/huge"], input=b"new", check=True)
    while piece := os.read(fd, MIB):
        read += len(piece)
    os.close(fd)
    status, errors = pipe.end()
    assert status == 1 and b"huge" in errors and b"changed" in errors
    assert read <= 72 * MIB  # what was on its way, in pieces of 8 MiB


@pytest.mark.parametrize("read", [False, True])
def test_a_signal_leaves_no_fifo(start: Start, read: bool) -> None:
    pipe = start("gs://bucket/large", "--epochs", "2")
    if read:
        fd = pipe.open(0)
        os.read(fd, 10)
    else:
        wait_for((pipe.folder / "fifo_0").exists)
    pipe.process.send_signal(signal.SIGTERM)
    assert pipe.end() == (-signal.SIGTERM, b"")
    if read:
        os.close(fd)


def test_a_file_in_the_place_of_a_fifo(millrace_bin: Path, tmp_path: Path, contents: dict[str, bytes]) -> None:
    (tmp_path / "fifo_0").write_bytes(b"mine")
    done = subprocess.run(
        [millrace_bin, "pipe", "gs://bucket/other", "--fifo", tmp_path / "fifo"],
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1 and b"cannot make the FIFO" in done.stderr
    assert (tmp_path / "fifo_0").read_bytes() == b"mine"
