"""What goes wrong on a checkpoint's way to the store, and what the save says then (docs/retries.md).

A save ends well only when the store has the whole object with the right checksum; else nothing has changed there.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace import ChangedError, Error, checkpoint
from tests.conftest import StartDevstore, our_processes
from tests.e2e.proxy import Answer, Proxy, Request
from tests.serve import Supervisor, start_supervisor, wait_for
from tests.stores import put, temporary

BUCKET = "ckpt"
OLD = b"the old checkpoint" * 1000
PART = 5 << 20
SHORT, LONG = 100_000, 2 * PART + 12345  # one insert; three parts
TOML = """[checkpoint]
part_bytes = "5MiB"
arena_bytes = "40MiB"
[retry]
base_ms = 5
cap_ms = 50
attempts = 6
"""
NAMES = ["new.pt", "old.pt"]  # old.pt exists
SIZES = [SHORT, LONG]

Start = Callable[..., Proxy]


@pytest.fixture
def start(
    devstore: StartDevstore, millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    """A bucket with old.pt behind a proxy, and a supervisor that goes there."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    (tmp_path / "store" / BUCKET).mkdir(parents=True)
    store = devstore("--root", str(tmp_path / "store"))
    put(store.url, BUCKET, "old.pt", OLD)
    supervisors: list[Supervisor] = []
    with Proxy(store.port) as proxy:

        def begin(auth: str = "anonymous", **environment: str) -> Proxy:
            gcs = f'[gcs]\nendpoint = "{proxy.url}"\nauth = "{auth}"\n'
            supervisor = start_supervisor(millrace_bin, tmp_path, "", TOML + gcs, **environment)
            supervisors.append(supervisor)
            monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
            return proxy

        yield begin
        proxy.hook, proxy.good = lambda request: None, None

        def is_clean() -> bool:
            with urllib.request.urlopen(f"{store.url}/{BUCKET}?uploads") as reply:
                return b"<UploadId>" not in reply.read() and temporary(store.url, BUCKET) == []

        wait_for(is_clean)  # the stop leaves two seconds for it
        for supervisor in supervisors:
            supervisor.stop()
        assert is_clean()


def save(name: str, data: bytes, if_absent: bool = False) -> checkpoint.Saved:
    file = checkpoint.writer(f"gs://{BUCKET}/{name}", if_absent=if_absent)
    file.write(data)
    return file.close()


def there(tmp_path: Path, name: str) -> bytes | None:
    file = tmp_path / "store" / BUCKET / name
    return file.read_bytes() if file.exists() else None


def before(name: str) -> bytes | None:
    return OLD if name == "old.pt" else None


def flip(request: Request) -> None:
    middle = len(request.body) // 2
    request.body = request.body[:middle] + bytes([request.body[middle] ^ 4]) + request.body[middle + 1 :]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_a_bit_flipped_once_is_sent_again(start: Start, tmp_path: Path, name: str, size: int) -> None:
    proxy = start()
    flipped: list[str] = []

    def hook(request: Request) -> Answer | None:
        if request.is_part and not flipped:
            flipped.append(request.path)
            flip(request)
        return None

    proxy.hook = hook
    data = random.Random(1).randbytes(size)
    saved = save(name, data)
    assert flipped
    assert (saved.size, there(tmp_path, name)) == (size, data)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_bits_that_always_flip_are_an_error(start: Start, tmp_path: Path, name: str, size: int) -> None:
    proxy = start()

    def hook(request: Request) -> Answer | None:
        if request.is_part:
            flip(request)
        return None

    proxy.hook = hook
    with pytest.raises(Error, match=name) as error:
        save(name, random.Random(1).randbytes(size))
    assert "crc32c" in str(error.value)
    assert there(tmp_path, name) == before(name)


@pytest.mark.parametrize("size", SIZES)
def test_if_absent_and_it_is_there(start: Start, tmp_path: Path, size: int) -> None:
    start()
    with pytest.raises(FileExistsError, match=r"old\.pt"):
        save("old.pt", bytes(size), if_absent=True)
    assert there(tmp_path, "old.pt") == OLD
    assert save("new.pt", bytes(size), if_absent=True).size == size


@pytest.mark.parametrize("size", SIZES)
def test_somebody_else_replaces_it_meanwhile(start: Start, tmp_path: Path, size: int) -> None:
    """The condition that the old one is still there (412) fails: theirs stays."""
    proxy = start()
    theirs = b"somebody else's"

    def hook(request: Request) -> Answer | None:
        if request.is_part and there(tmp_path, "old.pt") == OLD:
            put(f"http://127.0.0.1:{proxy.upstream}", BUCKET, "old.pt", theirs)
        return None

    proxy.hook = hook
    with pytest.raises(ChangedError, match=r"old\.pt"):
        save("old.pt", bytes(size))
    assert there(tmp_path, "old.pt") == theirs


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_a_storm_of_503_that_ends(start: Start, tmp_path: Path, name: str, size: int) -> None:
    proxy = start()
    seen: dict[str, int] = {}

    def hook(request: Request) -> Answer | None:
        key = f"{request.method} {request.path.split('?')[0]} {'partNumber' in request.path}"
        seen[key] = seen.get(key, 0) + 1
        return (503, b"{}") if seen[key] <= 3 else None

    proxy.hook = hook
    data = random.Random(2).randbytes(size)
    save(name, data)
    assert there(tmp_path, name) == data


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_a_storm_of_503_that_does_not_end(start: Start, tmp_path: Path, name: str, size: int) -> None:
    proxy = start()
    proxy.hook = lambda request: (503, b"{}") if request.is_part else None
    with pytest.raises(OSError, match=name) as error:
        save(name, bytes(size))
    assert "503" in str(error.value)
    assert there(tmp_path, name) == before(name)


def credentials(tmp_path: Path, proxy: Proxy) -> str:
    file = tmp_path / "credentials.json"
    user = {"type": "authorized_user", "client_id": "id", "client_secret": "s", "refresh_token": "r"}
    file.write_text(json.dumps({**user, "token_uri": f"{proxy.url}/token"}))
    return str(file)


@pytest.mark.parametrize("name", NAMES)
def test_a_token_that_expires_in_mid_upload(
    start: Start, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    file = tmp_path / "credentials.json"
    file.write_text("{}")
    proxy = start("default", GOOGLE_APPLICATION_CREDENTIALS=str(file))  # read when the first worker needs it
    credentials(tmp_path, proxy)
    proxy.good = {"token-1"}

    def hook(request: Request) -> Answer | None:
        if request.is_part and proxy.token == "token-1" and sum("PUT" in s or "multipart" in s for s in proxy.seen) > 1:
            proxy.token, proxy.good = "token-2", {"token-2"}
        return None

    proxy.hook = hook
    data = random.Random(3).randbytes(LONG)
    save(name, data)
    assert proxy.token == "token-2"
    assert there(tmp_path, name) == data


def test_a_token_that_is_refused_for_good(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    file = tmp_path / "credentials.json"
    file.write_text("{}")
    proxy = start("default", GOOGLE_APPLICATION_CREDENTIALS=str(file))
    credentials(tmp_path, proxy)
    proxy.good = {"another"}
    with pytest.raises(PermissionError):
        save("new.pt", bytes(LONG))
    proxy.good = None
    assert there(tmp_path, "new.pt") is None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB. Where nothing may be mounted the limit on a file's size takes its place."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True)
    yield folder
    if mounted.returncode == 0:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk(start: Start, small_disk: Path) -> None:
    start()
    target = small_disk / "model.pt"
    saved = checkpoint.writer(target)
    saved.write(OLD)
    saved.close()
    if not os.path.ismount(small_disk):  # pragma: no cover - containers without the right to mount
        limit_file_sizes()
    file = checkpoint.writer(target)
    with pytest.raises(OSError, match=r"model\.pt"):
        for _ in range(10):
            file.write(bytes(PART))
        file.close()
    assert target.read_bytes() == OLD
    assert [p.name for p in small_disk.iterdir()] == ["model.pt"]


def limit_file_sizes() -> None:  # of this test's write workers
    for pid, line in our_processes().items():
        if "millrace-worker write" in line:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
