"""What millrace writes, read by Google's own client: into fake-gcs-server (third-party), devstore and a folder."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import google.cloud.storage
import pytest
from google.auth.credentials import AnonymousCredentials

from tests.conftest import Server, StartDevstore
from tests.stores import create_bucket

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
NAMES = ["plain", "dir/a b%2F+é?#&=.bin", 'quo"te\\', "tab\there"]


def client_of(url: str) -> google.cloud.storage.Client:
    return google.cloud.storage.Client(
        project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": url}
    )


@pytest.fixture
def run(millrace_bin: Path) -> Run:
    def start(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([millrace_bin, *map(str, arguments)], capture_output=True, timeout=100, check=False)

    return start


@pytest.fixture(params=[pytest.param("fake-gcs-server", marks=pytest.mark.nightly), "devstore"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Server:
    started: Server
    if request.param == "devstore":
        start: StartDevstore = request.getfixturevalue("devstore")
        started = start("--memory")
    else:
        started = request.getfixturevalue("fake_gcs")
    create_bucket(started.url, "bkt")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", started.url)
    return started


def test_what_is_written_is_read_by_googles_client(server: Server, run: Run, tmp_path: Path) -> None:
    bucket = client_of(server.url).bucket("bkt")
    source = tmp_path / "source"
    for i, name in enumerate(NAMES):
        source.write_bytes(random.Random(i).randbytes(1000 * i))
        copied = run("cp", source, f"gs://bkt/{name}", "--if-absent")
        assert copied.returncode == 0, copied.stderr
        blob = bucket.get_blob(name)
        assert blob is not None
        assert blob.download_as_bytes(checksum="crc32c") == source.read_bytes()
    assert sorted(blob.name for blob in bucket.list_blobs()) == sorted(NAMES)
    again = run("cp", source, f"gs://bkt/{NAMES[0]}", "--if-absent")
    assert again.returncode == 1 and b"exists already" in again.stderr


def test_a_large_object(server: Server, run: Run, tmp_path: Path) -> None:
    """Larger than one chunk of an upload session."""
    source = tmp_path / "source"
    data = random.Random(1).randbytes((34 << 20) + 12345)
    source.write_bytes(data)
    copied = run("cp", source, "gs://bkt/large")
    assert copied.returncode == 0, copied.stderr
    assert client_of(server.url).bucket("bkt").blob("large").download_as_bytes(checksum="crc32c") == data


def test_compose_and_remove(server: Server, run: Run) -> None:
    bucket = client_of(server.url).bucket("bkt")
    for name in ("one", "two", "three"):
        bucket.blob(name).upload_from_string(name)
    composed = run("compose", "gs://bkt/all", "gs://bkt/one", "gs://bkt/two", "gs://bkt/three")
    assert composed.returncode == 0, composed.stderr
    assert bucket.blob("all").download_as_bytes() == b"onetwothree"
    removed = run("rm", "gs://bkt/one", "gs://bkt/two")
    assert removed.returncode == 0, removed.stderr
    assert sorted(blob.name for blob in bucket.list_blobs()) == ["all", "three"]
