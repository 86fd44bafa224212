"""`millrace clean`: unfinished multipart uploads of a bucket, and what killed writers left in a folder."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartDevstore
from tests.stores import create_bucket


def clean(program: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "STORAGE_EMULATOR_HOST": url}
    return subprocess.run([program, "clean", *arguments], env=environment, capture_output=True, text=True, timeout=100)


def answer(program: Path, url: str, *arguments: str) -> dict[str, Any]:
    result = clean(program, url, "--json", *arguments)
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


def begin(url: str, name: str) -> str:
    """Its id."""
    request = urllib.request.Request(f"{url}/bucket/{urllib.parse.quote(name)}?uploads", b"", method="POST")
    with urllib.request.urlopen(request) as reply:
        return str(re.findall("<UploadId>(.*?)</UploadId>", reply.read().decode())[0])


def under_way(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/bucket?uploads") as reply:
        return re.findall("<Key>(.*?)</Key>", reply.read().decode())


def test_uploads(devstore: StartDevstore, millrace_bin: Path) -> None:
    url = devstore("--memory").url
    create_bucket(url, "bucket")
    for name in ("ckpt/a", "ckpt/b c", "other"):
        begin(url, name)

    # They are young: somebody may write them on another node.
    assert answer(millrace_bin, url, "gs://bucket")["unfinished"] == {
        "seen": 3,
        "removed": 0,
        "failed": 0,
        "failure": "",
        "uploads": [],
    }
    looked = answer(millrace_bin, url, "--dry-run", "--older-than", "0", "gs://bucket/ckpt/")["unfinished"]
    assert [item["uri"] for item in looked["uploads"]] == ["gs://bucket/ckpt/a", "gs://bucket/ckpt/b c"]
    assert looked["removed"] == 0 and len(under_way(url)) == 3

    result = clean(millrace_bin, url, "--older-than", "0", "gs://bucket/ckpt/")
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"(gs://bucket/ckpt/(a|b c)\tunfinished upload\t\d+\n){2}", result.stdout)
    assert "2 unfinished uploads under gs://bucket/ckpt/: 2 removed" in result.stderr
    assert under_way(url) == ["other"]
    assert answer(millrace_bin, url, "--all", "gs://bucket")["unfinished"]["removed"] == 1
    assert under_way(url) == []
    assert "0 unfinished uploads under gs://bucket/" in clean(millrace_bin, url, "gs://bucket").stderr


def test_this_machines_records(
    devstore: StartDevstore, millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead run's upload goes at any age, a living one's stays at any age, and what a store that does not answer has
    is named, by doctor too."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    logs = tmp_path / "millrace" / "uploads"
    logs.mkdir(parents=True)
    for folder in (tmp_path, logs.parent, logs):
        folder.chmod(0o700)
    url = devstore("--memory").url
    create_bucket(url, "bucket")
    hours_ago = time.time() - 7200
    ids = {name: begin(url, name) for name in ("dead", "live", "unknown")}
    for run, endpoint, name in ((0, url, "dead"), (1, url, "live"), (2, "http://127.0.0.1:1", "gone")):
        log = logs / f"{run}f8fad5b-d9cb-469f-a165-70867728950e.4096.1"
        log.write_text(f"B 1 {hours_ago:.0f} {endpoint} bucket {name}\nI 1 {ids.get(name, 'x')}\n")
        os.utime(log, (hours_ago, hours_ago))
    with (logs / "1f8fad5b-d9cb-469f-a165-70867728950e.4096.1").open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert answer(millrace_bin, url, "gs://bucket")["unfinished"]["removed"] == 1
        assert sorted(under_way(url)) == ["live", "unknown"]
        result = clean(millrace_bin, url, "--older-than", "0", "gs://bucket")
        assert under_way(url) == ["live"]
        assert "left 1 unfinished upload at http://127.0.0.1:1, the oldest of gs://bucket/gone" in result.stderr
        report = subprocess.run([millrace_bin, "doctor", "gs://bucket"], capture_output=True, text=True, check=False)
        assert re.search("note  uploads .*http://127.0.0.1:1, the oldest of gs://bucket/gone", report.stdout)
        assert answer(millrace_bin, url, "--all", "gs://bucket")["unfinished"]["removed"] == 1


def test_an_upload_that_cannot_be_removed(devstore: StartDevstore, millrace_bin: Path) -> None:
    url = devstore("--memory", "--deny", "storage.multipartUploads.abort").url
    create_bucket(url, "bucket")
    begin(url, "a")
    result = clean(millrace_bin, url, "--all", "gs://bucket/a")
    assert result.returncode == 1
    assert "0 removed" in result.stderr and "1 failed" in result.stderr and "403" in result.stderr


ANSWERS = [
    (405, "", 0, "0 unfinished uploads under gs://bucket/: 0 removed"),
    (404, "404 page not found", 0, "0 unfinished uploads under gs://bucket/: 0 removed"),
    (404, "<Error><Code>NoSuchBucket</Code></Error>", 1, "NoSuchBucket"),
    (400, "<Error><Code>InvalidBucketName</Code></Error>", 2, "InvalidBucketName"),
    (200, "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
          "<NextUploadIdMarker>u</NextUploadIdMarker></ListMultipartUploadsResult>", 1, "would never end"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "wanted", "text"), ANSWERS)
def test_what_an_endpoint_answers(millrace_bin: Path, status: int, body: str, wanted: int, text: str) -> None:
    """One that has no uploads is fine; a refusal, or a list without an end, is not."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = "?uploads" in self.path
            answer = body.encode() if asked else b"{}"  # no temporary objects
            self.send_response(status if asked else 200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        result = clean(millrace_bin, f"http://127.0.0.1:{server.server_port}", "gs://bucket/")
        server.shutdown()
    assert (result.returncode, text in result.stderr) == (wanted, True), result.stderr


def test_files(millrace_bin: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "ckpt"
    folder.mkdir(parents=True)
    (folder / "step.pt").write_bytes(b"whole")
    dead, live, young = (folder / f".millrace-{i:016x}.parts" for i in range(3))
    for path in (dead, live, young):
        path.write_bytes(b"part")
    for path in (dead, live):
        os.utime(path, (time.time() - 500, time.time() - 500))
    with live.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (tmp_path / "run" / "again").symlink_to(folder)  # not followed: each file is listed once
        looked = answer(millrace_bin, "", f"file://{tmp_path}")["unfinished"]
        assert [item["uri"] for item in looked["uploads"]] == [f"file://{dead}"]
        assert sorted(path.name for path in folder.iterdir()) == [live.name, young.name, "step.pt"]
    linked = tmp_path / "run" / "again"  # the folder asked for is found through a link
    assert answer(millrace_bin, "", str(linked))["unfinished"]["removed"] == 1
    result = clean(millrace_bin, "", f"file://{folder}/step.pt")
    assert result.returncode == 1 and "Not a directory" in result.stderr
    result = clean(millrace_bin, "", f"file://{tmp_path}/nothing")
    assert result.returncode == 1 and "No such file" in result.stderr


def test_folders_of_the_longest_path(millrace_bin: Path, tmp_path: Path) -> None:
    """Where no entry's name fits; folders that are read later are searched all the same."""
    deep = tmp_path
    while len(str(deep)) < 4095:
        left = 4095 - len(str(deep)) - 1
        deep /= "d" * (left if left <= 255 else min(254, left - 2))
    assert len(str(deep)) == 4095
    deep.mkdir(parents=True)
    for i in range(6):
        (tmp_path / f"s{i}").mkdir()
        old = tmp_path / f"s{i}" / f".millrace-{i:016x}.part"
        old.write_bytes(b"part")
        os.utime(old, (1, 1))
    assert answer(millrace_bin, "", str(tmp_path))["unfinished"]["removed"] == 6


def test_uploads_that_may_not_be_listed(devstore: StartDevstore, millrace_bin: Path) -> None:
    url = devstore("--memory", "--deny", "storage.multipartUploads.list").url
    create_bucket(url, "bucket")
    result = clean(millrace_bin, url, "gs://bucket")
    assert result.returncode == 0 and "unfinished uploads could not be listed" in result.stderr
    assert clean(millrace_bin, url, "gs://bucket/a").returncode == 1


@pytest.mark.parametrize("wrong", [["gs://"], ["s3://"], ["--older-than", "-1", "gs://bucket"]])
def test_wrong_usage(millrace_bin: Path, wrong: list[str]) -> None:
    result = clean(millrace_bin, "", *wrong)
    assert result.returncode == 2 and result.stderr, result
