"""`millrace doctor`: each check, right and wrong."""

from __future__ import annotations

import email.utils
import http.server
import json
import os
import re
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartDevstore
from tests.serve import DEADLINE_S

Doctor = Callable[..., "tuple[int, dict[str, tuple[str, str]]]"]


@pytest.fixture
def doctor(millrace_bin: Path, runtime: Path) -> Doctor:
    """Runs `doctor --json`: exit status, and what each check said (status, text); the last of a name counts."""

    def run(*arguments: str | Path, limits: Any = None, **env: str) -> tuple[int, dict[str, tuple[str, str]]]:
        done = subprocess.run(
            [str(millrace_bin), "doctor", "--json", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env={**os.environ, **env},
            preexec_fn=limits,
        )
        assert done.stderr == ""
        report = json.loads(done.stdout)
        assert report["ok"] == (done.returncode == 0) == all(c["status"] != "fail" for c in report["checks"])
        return done.returncode, {c["check"]: (c["status"], c["text"]) for c in report["checks"]}

    return run


def test_a_folder(doctor: Doctor, config: Path, millrace_bin: Path) -> None:
    status, checks = doctor("-c", config)
    assert status == 0
    assert list(checks) == [
        "configuration",
        "memory",
        "shared memory",
        "checkpoints",
        "huge pages",
        "open files",
        "run folder",
        "processors",
        "data",
    ]
    assert "arena 8.0 MiB, receive buffers 64.0 MiB, page tables with one reader 32.0 KiB" in checks["memory"][1]
    lines = subprocess.run([millrace_bin, "doctor", "-c", config], capture_output=True, text=True).stdout.splitlines()
    assert len(lines) == len(checks) + 2
    assert lines[0] == f"ok    configuration  {config}: 1 data sets"


def test_a_machine_that_is_too_small(doctor: Doctor, tmp_path: Path) -> None:
    config = tmp_path / "large.toml"
    config.write_text('[memory]\narena_bytes = "15TiB"\nbacking = "posix"\n')
    status, checks = doctor("-c", config)
    assert status == 1
    assert checks["memory"][0] == "fail" and "lower memory.arena_bytes to" in checks["memory"][1]
    assert checks["shared memory"][0] == "fail" and 'memory.backing = "auto"' in checks["shared memory"][1]
    assert checks["checkpoints"][0] == "note" and "checkpoint.arena_bytes" in checks["checkpoints"][1]
    assert checks["data"][0] == "note"


def test_what_a_checkpoint_gets(doctor: Doctor, tmp_path: Path) -> None:
    config = tmp_path / "checkpoints.toml"
    config.write_text('[checkpoint]\narena_bytes = "64MiB"\nworkers = 3\n[memory]\narena_bytes = "8MiB"\n')
    checks = doctor("-c", config)[1]
    assert checks["checkpoints"][0] == "ok"
    told = "64.0 MiB of shared memory with the first one: a lone writer has 8 parts of 6.0 MiB"
    assert told in checks["checkpoints"][1]


def test_limits_and_folders(doctor: Doctor, config: Path, runtime: Path) -> None:
    status, checks = doctor("-c", config, limits=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
    assert status == 1
    assert checks["open files"][0] == "fail" and "LimitNOFILE" in checks["open files"][1]
    (runtime / "millrace").mkdir(exist_ok=True)
    (runtime / "millrace").chmod(0o755)
    status, checks = doctor("-c", config)
    assert status == 1
    assert checks["run folder"][0] == "fail" and "XDG_RUNTIME_DIR" in checks["run folder"][1]


def test_wrong_configuration(millrace_bin: Path, tmp_path: Path) -> None:
    config = tmp_path / "wrong.toml"
    config.write_text("[fetch]\nworker = 2\n")
    done = subprocess.run([millrace_bin, "doctor", "-c", config], capture_output=True, text=True)
    assert done.returncode == 2
    assert "did you mean 'workers'" in done.stderr


def test_a_configuration_from_a_pipe(millrace_bin: Path, runtime: Path, tmp_path: Path) -> None:
    """It can be read only once: the checks of the store are made with what was read."""
    text = f'[dataset.a]\nuri = "file://{tmp_path}/nothing/"\n'
    done = subprocess.run([millrace_bin, "doctor", "-c", "/dev/stdin"], input=text, capture_output=True, text=True)
    assert done.returncode == 1
    assert any(line.startswith("FAIL") and "nothing" in line for line in done.stdout.splitlines()), done.stdout


def test_a_bucket(doctor: Doctor, devstore: StartDevstore) -> None:
    server = devstore("--synthetic", "bucket:10:10", "--location", "US-EAST1")
    status, checks = doctor("gs://bucket/", STORAGE_EMULATOR_HOST=server.url)
    assert status == 0
    assert checks["endpoint"][0] == "ok" and checks["endpoint"][1].startswith(f"{server.url} answers: ")
    assert checks["clock"][0] == "ok" and re.fullmatch(r"within \d+ s of the server's", checks["clock"][1])
    assert checks["credentials"][0] == "ok" and "anonymous" in checks["credentials"][1]
    assert checks["bucket"] == ("ok", "gs://bucket: STANDARD in US-EAST1 (region)")
    assert checks["soft delete"] == ("ok", "gs://bucket: off")
    assert checks["permissions"] == ("ok", "gs://bucket: list, get, create and delete objects")
    assert checks["data"] == ("ok", "gs://bucket/: there are objects; the first is obj-000000000")


@pytest.mark.parametrize(
    ("flags", "check", "level", "part"),
    [
        (["--deny", "storage.objects.delete"], "permissions", "note", "storage.objects.delete missing"),
        (["--deny", "storage.objects.get"], "permissions", "fail", "roles/storage.objectViewer"),
        (["--deny", "storage.objects.list"], "data", "fail", "403"),
        (["--deny", "storage.buckets.get"], "bucket", "note", "cannot be seen"),
        (["--storage-class", "NEARLINE"], "bucket", "note", "billed by the byte"),
        (["--requester-pays"], "bucket", "fail", "requester pays"),
        (["--fault", "status:1:404:iam:*"], "permissions", "note", "does not report them"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bucket_with_something(
    doctor: Doctor, devstore: StartDevstore, flags: list[str], check: str, level: str, part: str
) -> None:
    server = devstore("--synthetic", "bucket:10:10", *flags)
    status, checks = doctor("gs://bucket/", STORAGE_EMULATOR_HOST=server.url)
    assert checks[check][0] == level, checks
    assert part in checks[check][1]
    assert status == (level == "fail")


def test_soft_delete_and_compose(doctor: Doctor, devstore: StartDevstore, tmp_path: Path) -> None:
    server = devstore("--synthetic", "bucket:10:10", "--soft-delete-s", "604800")
    config = tmp_path / "compose.toml"
    config.write_text('[fetch]\ncompose = "never"\n[dataset.a]\nuri = "gs://bucket/"\n')
    _, checks = doctor("-c", config, STORAGE_EMULATOR_HOST=server.url)
    assert checks["soft delete"] == ("ok", "gs://bucket: deleted objects are kept and billed for 7 days")
    config.write_text('[fetch]\ncompose = "auto"\n[dataset.a]\nuri = "gs://bucket/"\n')
    _, checks = doctor("-c", config, STORAGE_EMULATOR_HOST=server.url)
    assert checks["soft delete"][0] == "note" and "decides against them" in checks["soft delete"][1]


def test_places_that_are_not_there(doctor: Doctor, devstore: StartDevstore, tmp_path: Path) -> None:
    server = devstore("--synthetic", "bucket:10:10")
    for uri, check, part in (
        ("gs://bucket/nothing/", "data", "is the prefix right"),
        ("gs://no-bucket/", "bucket", "404"),
        (f"file://{tmp_path}/nothing/", "data", "nothing"),
    ):
        status, checks = doctor(uri, STORAGE_EMULATOR_HOST=server.url)
        assert status == 1
        assert checks[check][0] == "fail" and part in checks[check][1], checks
    server.stop()
    status, checks = doctor("gs://bucket/", "gs://bucket/x", STORAGE_EMULATOR_HOST=server.url)
    assert status == 1
    assert checks["endpoint"][0] == "fail" and "check the network" in checks["endpoint"][1]
    assert "data" not in checks


class Cloud(http.server.ThreadingHTTPServer):
    """A token server and a bucket, with a clock of its own."""

    daemon_threads = True
    ahead_s = 0
    token_status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Cloud

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.token_status == 200:
            self.say(200, {"access_token": "the-secret-token", "expires_in": 3600, "token_type": "Bearer"})
        else:
            self.say(self.server.token_status, {"error": "invalid_grant", "error_description": "revoked"})

    def do_GET(self) -> None:
        if "/iam/" in self.path:
            self.say(200, {"permissions": ["storage.objects.list", "storage.objects.get"]})
        elif self.path.split("?")[0].endswith("/o"):
            self.say(200, {"items": [{"name": "a", "size": "1", "generation": "1"}]})
        else:
            self.say(200, {"storageClass": "STANDARD", "location": "EU", "locationType": "multi-region"})

    def say(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return email.utils.formatdate(time.time() + self.server.ahead_s, usegmt=True)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    server = Cloud(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def with_credentials(cloud: Cloud, tmp_path: Path) -> tuple[Path, str]:
    config, key = tmp_path / "cloud.toml", tmp_path / "user.json"
    config.write_text(f'[gcs]\nendpoint = "{cloud.url}"\n')
    user = {"type": "authorized_user", "client_id": "i", "client_secret": "the-secret", "refresh_token": "the-secret"}
    key.write_text(json.dumps({**user, "token_uri": f"{cloud.url}/token"}))
    return config, str(key)


def test_credentials(doctor: Doctor, cloud: Cloud, tmp_path: Path) -> None:
    config, key = with_credentials(cloud, tmp_path)
    status, checks = doctor("-c", config, "gs://bucket/", GOOGLE_APPLICATION_CREDENTIALS=key)
    assert status == 0, checks
    text = checks["credentials"][1]
    assert checks["credentials"][0] == "ok"
    assert f"from {key}; its token is good for 59 min" in text or "for 60 min" in text
    assert "the-secret" not in str(checks)
    assert checks["permissions"][0] == "note" and checks["bucket"][1] == "gs://bucket: STANDARD in EU (multi-region)"


def test_bad_credentials(doctor: Doctor, cloud: Cloud, tmp_path: Path) -> None:
    config, key = with_credentials(cloud, tmp_path)
    cloud.token_status = 400
    status, checks = doctor("-c", config, "gs://bucket/", GOOGLE_APPLICATION_CREDENTIALS=key)
    assert status == 1
    assert checks["credentials"][0] == "fail" and "revoked" in checks["credentials"][1]
    assert "the-secret" not in str(checks)
    missing = str(tmp_path / "nothing.json")
    status, checks = doctor("-c", config, "gs://bucket/", GOOGLE_APPLICATION_CREDENTIALS=missing)
    assert status == 1
    assert checks["credentials"][0] == "fail" and missing in checks["credentials"][1]


@pytest.mark.parametrize(("ahead_s", "level", "part"), [(100, "note", "behind"), (-1000, "fail", "ahead of")])
def test_a_clock_that_is_off(doctor: Doctor, cloud: Cloud, tmp_path: Path, ahead_s: int, level: str, part: str) -> None:
    config, key = with_credentials(cloud, tmp_path)
    cloud.ahead_s = ahead_s
    status, checks = doctor("-c", config, "gs://bucket/", GOOGLE_APPLICATION_CREDENTIALS=key)
    assert checks["clock"][0] == level and part in checks["clock"][1]
    assert status == (level == "fail")


def test_writes(doctor: Doctor, devstore: StartDevstore, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    status, checks = doctor("--write", f"file://{folder}/")
    assert status == 0 and checks["data"][0] == "note" and list(folder.iterdir()) == []
    honoured = "of new objects honoured, of replaced ones honoured, of uploads in parts honoured, of deletes honoured"
    assert checks["conditions"] == ("ok", f"file://: {honoured}")
    server = devstore("--synthetic", "bucket:1:1KiB")
    status, checks = doctor("--write", "gs://bucket/x/", STORAGE_EMULATOR_HOST=server.url)
    assert status == 0
    assert checks["conditions"] == ("ok", f"gs://bucket: {honoured.replace('of uploads in parts honoured, ', '')}")
    assert checks["upload parts"] == ("ok", "gs://bucket: of 5 MiB at least, but for the last")
    refuses = devstore("--synthetic", "bucket:1:1KiB", "--deny", "storage.objects.create")
    status, checks = doctor("--write", "gs://bucket/x/", STORAGE_EMULATOR_HOST=refuses.url)
    assert status == 1 and checks["writes"][0] == "fail" and "403" in checks["writes"][1]
    assert "conditions" not in checks
    keeps = devstore("--synthetic", "bucket:1:1KiB", "--deny", "storage.objects.delete")
    status, checks = doctor("--write", "gs://bucket/x/", STORAGE_EMULATOR_HOST=keeps.url)
    assert status == 1 and "could not be removed" in checks["writes"][1]
