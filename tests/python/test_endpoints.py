"""[endpoint.NAME]: several S3 stores in one run, by bucket and by name."""

from __future__ import annotations

import gc
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import millrace
from millrace.dcp import StorageReader, StorageWriter
from millrace.lightning._location import location
from tests.conftest import Server, start_devstore
from tests.serve import Supervisor, start_supervisor

from .helpers import pair
from .shards import KEYS

TOML = """
[memory]
arena_bytes = "16MiB"
[s3]
endpoint = "{here}"
[endpoint.there]
endpoint = "{there}"
region = "eu-north-1"
profile = "other"
buckets = ["saved", "logs-*"]
[endpoint.elsewhere]
endpoint = "http://127.0.0.1:1"
"""
PROFILE = "[other]\naws_access_key_id = another\naws_secret_access_key = key\n"


class Two:
    """Two stores: each has a bucket "bucket", the second one also "saved" and "logs-1"."""

    def __init__(self, folder: Path) -> None:
        self.roots = [folder / "here", folder / "there"]
        for root in self.roots:
            for name in ("a", "b"):
                (root / "bucket" / "set").mkdir(parents=True, exist_ok=True)
                (root / "bucket" / "set" / name).write_text(f"{name} {root.name}")
        for bucket in ("saved", "logs-1"):
            (self.roots[1] / bucket).mkdir()
        self.logs = [folder / "here.log", folder / "there.log"]
        self.servers: list[Server] = []
        for root, log in zip(self.roots, self.logs):
            self.servers.append(start_devstore("--root", root, "--log", log))
        self.toml = TOML.format(here=self.servers[0].url, there=self.servers[1].url)
        (folder / "credentials").write_text(PROFILE)
        self.env = {**KEYS, "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials")}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    made = Two(tmp_path_factory.mktemp("two"))
    yield made
    for server in made.servers:
        server.stop()


@pytest.fixture(scope="module")
def running(two: Two, millrace_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    supervisor = start_supervisor(millrace_bin, tmp_path_factory.mktemp("run"), "", two.toml, **two.env)
    with pytest.MonkeyPatch.context() as patch:  # all its workers are there before the first test
        patch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
        assert len(millrace.MapDataset("s3://bucket/set/", transform=bytes)[0]) == 6
        with millrace.checkpoint.writer("s3://saved/first") as file:
            file.write(b"first")
    yield supervisor
    gc.collect()
    assert supervisor.stop() == 0, supervisor.log.read_text()


@pytest.fixture
def used(two: Two, running: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in two.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MILLRACE_SOCKET", str(running.socket))


def test_buckets_of_one_name_are_two(two: Two, used: None) -> None:
    for uri, root in (("s3://bucket/set/", "here"), ("s3+there://bucket/set/", "there")):
        dataset = millrace.MapDataset(uri, transform=pair)
        assert [dataset[i] for i in (0, 1)] == [(f"set/{name}", f"{name} {root}".encode()) for name in ("a", "b")]
        with millrace.open(uri + "a") as file:
            assert file.read() == f"a {root}".encode() and file.name == uri + "a"
        assert millrace.checkpoint.list(uri) == [uri + "a", uri + "b"]
        listed = millrace.IterableDataset.from_objects([uri + "b"], transform=pair)
        assert list(listed) == [("set/b", f"b {root}".encode())]
    digests = {millrace.MapDataset(uri).digest for uri in ("s3://bucket/set/", "s3+there://bucket/set/")}
    assert len(digests) == 2


def test_reads_here_and_saves_there(two: Two, used: None) -> None:
    for uri in ("s3://saved/state", "s3://logs-1/state", "s3+there://bucket/state"):
        with millrace.checkpoint.writer(uri) as file:
            torch.save(uri, file)
        assert torch.load(millrace.checkpoint.reader(uri)) == uri
        assert (two.roots[1] / uri.partition("://")[2]).exists()
    assert not (two.roots[0] / "bucket" / "state").exists()
    state: dict[str, Any] = {"a": torch.randn(10)}
    dcp.save(state, storage_writer=StorageWriter("s3+there://bucket/dcp"))
    found = {"a": torch.zeros(10)}
    dcp.load(found, storage_reader=StorageReader(Path("s3+there://bucket/dcp")))
    assert torch.equal(found["a"], state["a"])
    millrace.checkpoint.remove("s3+there://bucket/dcp", recursive=True)
    assert not millrace.checkpoint.exists("s3+there://bucket/dcp")


def test_what_cannot_be_reached(two: Two, used: None) -> None:
    with pytest.raises(ValueError, match=r"s3\+none://bucket: the configuration has no \[endpoint.none\]"):
        len(millrace.MapDataset("s3+none://bucket/set/"))
    with pytest.raises(FileNotFoundError, match=r"s3\+there://bucket/none"), millrace.open("s3+there://bucket/none"):
        pass
    with pytest.raises(FileNotFoundError, match="saved/none"), millrace.open("s3://saved/none"):
        pass
    with pytest.raises(ValueError, match="endpoint's name"):
        len(millrace.MapDataset(f"s3+{'n' * 33}://bucket/"))


def test_tools_take_them(two: Two, millrace_bin: Path, tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(two.toml)

    def tool(*words: str) -> str:
        command = [str(millrace_bin), words[0], "-c", str(tmp_path / "two.toml"), *words[1:]]
        done = subprocess.run(command, env={**two.env, "PATH": ""}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert tool("ls", "s3+there://bucket/set/") == "s3+there://bucket/set/a\ns3+there://bucket/set/b\n"
    assert json.loads(tool("ls", "--json", "s3+there://bucket/set/a"))["uri"] == "s3+there://bucket/set/a"
    tool("cp", "s3://bucket/set/a", "s3+there://bucket/copied")
    assert (two.roots[1] / "bucket" / "copied").read_text() == "a here" == tool("cat", "s3+there://bucket/copied")
    shown = tool("doctor", "s3+there://bucket/set/", "s3://bucket/set/")
    assert two.servers[1].url in shown and "other" in shown, shown
    saved = tmp_path / "saved.mri"
    tool("index", "s3+there://bucket/set/", "-o", str(saved))
    assert "of         s3+there://bucket/set/" in tool("index", str(saved))
    checked = tmp_path / "checked.toml"
    checked.write_text(tool("check"))
    assert 'buckets = ["saved", "logs-*"]' in checked.read_text()
    done = subprocess.run([millrace_bin, "check", "-c", checked], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == checked.read_text()


def test_places_that_lightning_passes() -> None:
    assert location(Path("s3+there://bucket/a")) == "s3+there://bucket/a" == location("s3+there://bucket/a")
    assert location(Path("gcs://bucket/a")) == "gs://bucket/a"
