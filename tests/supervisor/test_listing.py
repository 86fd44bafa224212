"""Listings: the same objects however many workers cut them up, few requests, nothing lost silently, no short lists."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from millrace import _listing
from tests.conftest import Server, StartDevstore
from tests.serve import StartServe, Supervisor, strike, wait_for, workers
from tests.stores import create_bucket, delete, list_requests, put


def config_of(tmp_path: Path, store: Server, count: int, more: str = "", uri: str = "gs://bench/") -> Path:
    path = tmp_path / f"workers{count}.toml"
    path.write_text(
        f'[dataset.x]\nuri = "{uri}"\n[gcs]\nendpoint = "{store.url}"\nauth = "anonymous"\n'
        f'[memory]\narena_bytes = "8MiB"\n[list]\nworkers = {count}\ncache_files = 0\n{more}'
    )
    return path


def listed(server: Supervisor) -> dict[str, Any]:
    server.wait_ready()
    return dict(server.stat()["datasets"][0])


def failed(server: Supervisor) -> str:
    def look() -> str:
        dataset = server.stat()["datasets"][0]
        assert dataset["state"] != "ready", f"a list of {dataset['objects']} objects"
        return str(dataset.get("error", ""))

    return str(wait_for(look, "it never failed"))


@pytest.mark.parametrize("shape", ["", "hashes:", "deep:", "prefix:", "unicode:", "runs:", "skewed:"])
def test_any_number_of_workers_lists_the_same(
    serve: StartServe, devstore: StartDevstore, tmp_path: Path, shape: str
) -> None:
    log = tmp_path / "requests"
    store = devstore("--synthetic", f"bench:{shape}3000:10", "--page-size", "50", "--log", log)
    one = listed(serve(config_of(tmp_path, store, 1)))
    assert one["objects"] == 3000 and one["requests"] == 60
    wait_for(lambda: list_requests(log) == 60, "the requests are not those of the log")
    four = listed(serve(config_of(tmp_path, store, 4)))
    assert four["digest"] == one["digest"] and four["objects"] == 3000
    assert 60 <= four["requests"] <= 60 + 2 + 60 // 10


@pytest.mark.random
def test_killed_workers_lose_nothing(serve: StartServe, devstore: StartDevstore, tmp_path: Path) -> None:
    objects = ("--synthetic", "bench:hashes:3000:10", "--page-size", "30")
    whole = listed(serve(config_of(tmp_path, devstore(*objects), 1)))
    slow = devstore(*objects, "--latency-ms", "150")  # time to be killed in
    killed: set[int] = set()

    def kill_one() -> bool:
        for pid in set(workers(server.process.pid, "list")) - killed:
            time.sleep(0.15)  # it has listed something by then, most of the time
            strike(pid)
            killed.add(pid)
            if len(killed) == 3:
                return True
        return server.is_ready()

    for _ in range(5):
        server = serve(config_of(tmp_path, slow, 3))
        wait_for(kill_one, "nobody lists")
        if killed:
            break
    assert killed
    again = listed(server)
    assert again["digest"] == whole["digest"]


@pytest.mark.random
@pytest.mark.parametrize("fault", ["status:0.2:503:list:*", "reset:0.2::list:*", "short:0.2::list:*"])
def test_faults_are_repeated(serve: StartServe, devstore: StartDevstore, tmp_path: Path, fault: str) -> None:
    quick = "[retry]\nbase_ms = 1\ncap_ms = 20\n"
    clean = devstore("--synthetic", "bench:hashes:2000:10", "--page-size", "50")
    faulty = devstore("--synthetic", "bench:hashes:2000:10", "--page-size", "50", "--fault", fault, "--seed", "3")
    good = listed(serve(config_of(tmp_path, clean, 2)))
    bad = listed(serve(config_of(tmp_path, faulty, 2, quick)))
    assert (bad["objects"], bad["bytes"]) == (good["objects"], good["bytes"])


@pytest.mark.random
@pytest.mark.parametrize("status", [403, 404, 400])
def test_a_page_that_cannot_be_had_fails_all(
    serve: StartServe, devstore: StartDevstore, tmp_path: Path, status: int
) -> None:
    """About the tenth page of forty is refused: no list of what came before."""
    store = devstore(
        "--synthetic", "bench:2000:10", "--page-size", "50", "--fault", f"status:0.1:{status}:list:*", "--seed", "5"
    )
    server = serve(config_of(tmp_path, store, 2))
    assert "bench" in failed(server)
    assert server.stat()["datasets"][0]["objects"] == 0


def test_excluded_classes_are_counted(serve: StartServe, devstore: StartDevstore, tmp_path: Path) -> None:
    store = devstore("--synthetic", "bench:classes:400:10")
    everything = listed(serve(config_of(tmp_path, store, 1)))
    assert everything["objects"] == 400 and everything["dropped"] == {
        "folder": 0,
        "temporary": 0,
        "class": 0,
        "special": 0,
        "no_shard": 0,
        "damaged": 0,
    }
    server = serve(config_of(tmp_path, store, 2, 'exclude_classes = ["nearline", "COLDLINE", "archive"]\n'))
    standard = listed(server)
    assert 0 < standard["objects"] < 400
    assert standard["dropped"]["class"] == 400 - standard["objects"]
    assert f"left out: {standard['dropped']['class']} in excluded storage classes" in server.log.read_text()


def test_markers_and_temporary_objects_are_counted(serve: StartServe, devstore: StartDevstore, tmp_path: Path) -> None:
    store = devstore("--memory")
    create_bucket(store.url, "bucket-1")
    for name, data in (("a/", b""), ("a/x", b"1"), ("dataflux-composed-objects/1", b"2"), ("z/", b"not empty")):
        put(store.url, "bucket-1", name, data)
    server = serve(config_of(tmp_path, store, 1, uri="gs://bucket-1/"))
    found = listed(server)
    assert found["objects"] == 2
    assert found["dropped"]["folder"] == 1 and found["dropped"]["temporary"] == 1
    assert "1 folder markers, 1 temporary objects" in server.log.read_text()


def on_a_terminal(command: list[str], env: dict[str, str]) -> str:
    """What a command writes to standard error where that is a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, **env})
    os.close(theirs)
    shown = b""
    threading.Thread(target=process.communicate, daemon=True).start()  # standard output must not fill up
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # EIO: nobody has the other end any more
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    process.wait()
    return shown.decode()


def test_progress_on_a_terminal(devstore: StartDevstore, tmp_path: Path, runtime: Path) -> None:
    store = devstore("--synthetic", "bench:1000:10", "--page-size", "10", "--latency-ms", "20")
    config = config_of(tmp_path, store, 1)
    index = ["millrace", "index", "gs://bench/", "-o", str(tmp_path / "x.mri"), "-c", str(config)]
    shown = on_a_terminal(index, {})
    lines = [line for line in shown.split("\r") if line.startswith("listing gs://bench/: ")]
    assert lines and "objects so far" in lines[0] and "requests, 1 workers" in lines[0]
    assert "1000 objects" in shown.split("\r")[-2] or "1000 objects" in shown, "the summary comes last"
    assert not on_a_terminal([*index, "-q"], {}), "-q shows nothing"
    shown = on_a_terminal(["millrace", "ls", "-r", "gs://bench/", "-c", str(config)], {})
    assert "listed" in shown


def test_progress_where_python_waits(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(_listing, "SHOW_EVERY_S", 0.0)
    monkeypatch.setattr(_listing, "LOG_EVERY_S", 0.0)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.delenv("MILLRACE_SOCKET", raising=False)
    progress = _listing.ListingProgress("train")
    progress.update(12345, 13)
    progress.close()
    written = screen.getvalue().split("\r")
    assert written[1].startswith("listing train: 12,345 objects so far, ") and written[1].endswith("13 requests")
    assert written[-2].strip() == "" and len(written[-2]) == len(written[1]), "the line is taken away"

    monkeypatch.setenv("MILLRACE_SOCKET", "/a/socket")  # whose supervisor shows the line
    with caplog.at_level("INFO", "millrace"):
        progress = _listing.ListingProgress("train")
        progress.update(2000, 2)
        progress.close()
    assert "2,000 objects so far" in caplog.text and screen.getvalue().split("\r") == written


@pytest.mark.random
def test_a_bucket_that_changes_while_it_is_listed(serve: StartServe, devstore: StartDevstore, tmp_path: Path) -> None:
    """Names appear, vanish and are replaced in every page; those that stay are all there, once."""
    store = devstore("--memory", "--page-size", "10", "--latency-ms", "3")
    create_bucket(store.url, "bucket-1")
    stable = [f"n{i:04}" for i in range(0, 600, 2)]
    for name in stable:
        put(store.url, "bucket-1", name, b"stays")
    done = threading.Event()

    def change() -> None:
        for i in range(100000):
            name = f"n{(i * 7919) % 600:04}"
            if done.is_set():
                return
            if name in names:
                put(store.url, "bucket-1", name, b"again and longer" * (i % 5))
                continue
            put(store.url, "bucket-1", name, b"comes")
            delete(store.url, "bucket-1", name)

    names = set(stable)
    writer = threading.Thread(target=change)
    writer.start()
    try:
        server = serve(config_of(tmp_path, store, 3, uri="gs://bucket-1/"))
        found = listed(server)
    finally:
        done.set()
        writer.join()
    assert 300 <= found["objects"] <= 600
