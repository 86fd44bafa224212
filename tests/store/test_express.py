"""Directory buckets of S3 (S3 Express One Zone): commands, data sets and checkpoints, with sessions that end all the
time and listings in no order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import millrace
from millrace import checkpoint
from tests.conftest import Server, StartDevstore
from tests.serve import Supervisor, start_supervisor, wait_for
from tests.store.conftest import Run
from tests.stores import ACCESS, SECRET, create_bucket, requests, s3_environment

BUCKET = "mine--use1-az4--x-s3"
MADE = "made--use1-az4--x-s3"
PLACE = f"s3://{BUCKET}"
MIB = 1 << 20
BIG = random.Random(1).randbytes(12 * MIB + 5)
CONFIG = """
[checkpoint]
part_bytes = "5MiB"
arena_bytes = "20MiB"
"""


@pytest.fixture
def server(devstore: StartDevstore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    started = devstore(
        "--memory", "--s3-key", f"{ACCESS}:{SECRET}", "--s3-session-s", "6", "--synthetic", f"{MADE}:2500:100"
    )
    create_bucket(started.url, BUCKET)
    for name, value in s3_environment(started.url).items():
        monkeypatch.setenv(name, value)
    yield started


def ok(result: object) -> bytes:
    assert result.returncode == 0, result  # type: ignore[attr-defined]
    return bytes(result.stdout)  # type: ignore[attr-defined]


def test_commands(server: Server, millrace: Run, tmp_path: Path) -> None:
    names = ["b/2", "a/3", "a/10", "ab", "a/b/c", "z", "a/1"]
    for name in names:
        ok(millrace("cp", "-", f"{PLACE}/{name}", stdin=name.encode()))
    listed = ok(millrace("ls", "-r", f"{PLACE}/")).decode().split()
    assert listed == [f"{PLACE}/{name}" for name in sorted(names)]
    assert ok(millrace("ls", "--limit", "2", "-r", f"{PLACE}/a/")).decode().split() == [f"{PLACE}/a/1", f"{PLACE}/a/10"]
    ok(millrace("cp", "-", f"{PLACE}/big", stdin=BIG))
    assert ok(millrace("cat", f"{PLACE}/big")) == BIG
    doctor = ok(millrace("doctor", f"{PLACE}/a/")).decode()
    assert f"{PLACE}: EXPRESS_ONEZONE in use1-az4 (zone)" in doctor and "the first is a/1" in doctor
    ok(millrace("rm", "-r", f"{PLACE}/a/"))
    assert ok(millrace("ls", "-r", f"{PLACE}/")).decode().split() == [f"{PLACE}/{n}" for n in ("ab", "b/2", "big", "z")]
    ok(millrace("clean", f"{PLACE}/a"))
    refused = millrace("ls", PLACE, AWS_ACCESS_KEY_ID="AKIDANOTHER")
    assert refused.returncode == 1 and b"InvalidAccessKeyId" in refused.stderr, refused


@pytest.fixture
def supervisor(
    server: Server, millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Supervisor]:
    started = start_supervisor(millrace_bin, tmp_path, "http://127.0.0.1:9", CONFIG, **s3_environment(server.url))
    monkeypatch.setenv("MILLRACE_SOCKET", str(started.socket))
    yield started
    assert started.stop() == 0


def sessions(server: Server) -> int:
    return requests(server.url)["session"]


def test_an_epoch_and_a_checkpoint(server: Server, supervisor: Supervisor) -> None:
    dataset = millrace.IterableDataset(f"s3://{MADE}/", shuffle=True, seed=3)
    names = [f"obj-{i:09}" for i in range(2500)]
    assert [name for name, _ in dataset.objects] == names  # the index has them in order
    assert sorted(lease.name for lease in dataset) == names
    before = sessions(server)
    wait_for(lambda: sessions(server) > before, str)  # one that has ended is replaced
    assert len([1 for _ in dataset]) == 2500
    with checkpoint.writer(f"{PLACE}/ck/state.pt") as file:  # three parts
        file.write(BIG)
    with millrace.open(f"{PLACE}/ck/state.pt", "rb") as back:
        assert back.read() == BIG
    assert checkpoint.exists(f"{PLACE}/ck/state.pt")
    checkpoint.remove(f"{PLACE}/ck/state.pt")
    assert not checkpoint.exists(f"{PLACE}/ck/state.pt")
