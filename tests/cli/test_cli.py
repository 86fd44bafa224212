"""The command line: help, wrong usage, and what each command prints."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serve import DEADLINE_S, StartServe, launch

Run = Callable[..., "subprocess.CompletedProcess[str]"]
VERBS = (
    "run",
    "serve",
    "check",
    "doctor",
    "ls",
    "cat",
    "cp",
    "rm",
    "pipe",
    "mount",
    "compose",
    "index",
    "stat",
    "top",
    "bench",
    "reload",
)


@pytest.fixture
def millrace(millrace_bin: Path) -> Run:
    def run(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        command = [str(millrace_bin), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env={**os.environ, **env})

    return run


def test_help(millrace: Run) -> None:
    top = millrace("--help")
    assert top.returncode == 0
    assert all(f"millrace {verb} " in top.stdout for verb in VERBS)
    for verb in VERBS:
        one = millrace(verb, "--help")
        assert one.returncode == 0
        assert one.stdout.startswith(f"usage: millrace {verb} ")
        assert one.stderr == ""
        assert max(map(len, one.stdout.splitlines())) <= 100


def test_devstore_is_a_verb_and_has_its_own_help(millrace: Run) -> None:
    assert "millrace devstore " in millrace("--help").stdout
    done = millrace("devstore", "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: millrace-devstore ")
    assert millrace("devstore", "--no-such-option").returncode == 2


def test_version(millrace: Run) -> None:
    assert re.fullmatch(r"millrace \d+\.\d+\.\d+\n", millrace("--version").stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-verb"],
        ["run"],
        ["run", "--"],
        ["run", "--json", "--", "true"],
        ["serve", "extra"],
        ["serve", "--run-dir", "/tmp/x"],
        ["serve", "-c"],
        ["check", "extra"],
        ["check", "--nonsense"],
        ["check", "-c", "/no/such/file.toml"],
        ["stat", "--json", "--prometheus"],
        ["stat", "-c", "x"],
        ["stat"],
        ["bench"],
        ["bench", "-c", "/no/such/file.toml"],
        ["bench", "--steps", "0", "--dataset", "file:///tmp"],
        ["top"],
        ["top", "extra"],
        ["top", "--interval", "0"],
        ["top", "--interval", "soon"],
        ["top", "--count", "-1"],
        ["reload"],
        ["run", "--mount", "gs://b=/x", "--mount", "gs://c=/y", "--", "true"],
        ["doctor", "--nonsense"],
        ["doctor", "-c", "/no/such/file.toml"],
        ["ls"],
        ["cat"],
        ["cp", "x"],
        ["cp", "--recursive", "x", "y"],
        ["rm"],
        ["compose", "gs://b/x"],
        ["pipe", "gs://b/x"],
        ["pipe", "gs://b/x", "--fifo", "p", "--seed", "1"],
        ["pipe", "gs://b/x", "--fifo", "p", "--epochs", "0"],
        ["ls", "-c", "/no/such/file.toml", "gs://b/"],
    ],
    ids=" ".join,
)
def test_wrong_usage(millrace: Run, arguments: list[str]) -> None:
    result = millrace(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr != ""


def test_no_supervisor(millrace: Run, tmp_path: Path) -> None:
    result = millrace("stat", MILLRACE_SOCKET=str(tmp_path / "nobody"))
    assert result.returncode == 1
    assert "no millrace supervisor listens" in result.stderr


def test_check(millrace: Run, config: Path, tmp_path: Path) -> None:
    printed = millrace("check", "-c", config)
    assert printed.returncode == 0
    again = tmp_path / "again.toml"
    again.write_text(printed.stdout)
    assert millrace("check", "-c", again).stdout == printed.stdout
    assert 'arena_bytes = "8MiB"' in printed.stdout


@pytest.mark.parametrize(
    ("proxy", "shown"),
    [
        ("http://me:s3cret@proxy:3128", "http://me:(not shown)@proxy:3128"),
        ("http://me:s3c/s3cret@x@proxy:3128", "http://me:(not shown)@proxy:3128"),
        ("http://me@proxy:3128", "http://me@proxy:3128"),
        ("http://proxy:3128/a:b@c", "http://proxy:3128/a:b@c"),
        ("http://proxy:3128", "http://proxy:3128"),
        ("me:s3cret@proxy:3128", "me:(not shown)@proxy:3128"),
        ("proxy:3128", "proxy:3128"),
    ],
)
def test_check_shows_no_password(millrace: Run, tmp_path: Path, proxy: str, shown: str) -> None:
    config = tmp_path / "proxy.toml"
    config.write_text(f'[http]\nproxy = "{proxy}"\nheaders = {{ Authorization = "s3cret" }}\n')
    printed = millrace("check", "-c", config).stdout
    assert f'proxy = "{shown}"' in printed
    assert "s3cret" not in printed


def test_ls_and_cat(millrace: Run, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "x").write_text("hello")
    names = millrace("ls", f"file://{folder}/")
    assert names.returncode == 0, names.stderr
    assert names.stdout.splitlines()[0] == f"file://{folder}/000"
    assert names.stdout.splitlines()[-1] == f"file://{folder}/sub/"
    assert millrace("cat", "-q", f"file://{folder}/sub/x").stdout == "hello"
    assert millrace("cat", f"file://{folder}/sub/x", "--range", "1-3").stdout == "ell"
    missing = millrace("cat", f"file://{folder}/nothing")
    assert missing.returncode == 1
    assert "nothing" in missing.stderr


def test_stat_for_people_and_machines(millrace: Run, serve: StartServe, config: Path) -> None:
    one = serve(config)
    one.wait_ready()
    people = millrace("stat", "--socket", one.socket).stdout
    assert re.search(r"data set 0 +ready +train: 20 objects, 18\.6 KiB", people)
    assert "limited by    nothing: no reader is open" in people
    machine = millrace("stat", "--prometheus", "--socket", one.socket).stdout
    names = set()
    for line in machine.splitlines():
        match = re.fullmatch(r"# (HELP|TYPE) (millrace_\w+) .+|(millrace_\w+)(\{[^}]*\})? [-+.e\d]+", line)
        assert match, line
        names.add(match[2] or match[3])
    assert {"millrace_uptime_seconds", "millrace_dataset_objects", "millrace_lane_waiting_ratio"} <= names
    assert 'millrace_list_listed_objects{slot="0"} 20' in machine
    assert 'millrace_fetch_fetched_bytes{slot="1"} 0' in machine
    assert 'millrace_dataset_objects{dataset="0",name="train",state="ready"} 20' in machine


def test_reload_of_a_pipe(millrace: Run, millrace_bin: Path, tmp_path: Path) -> None:
    """What was read from one is not there a second time: the run keeps what it has."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("[retry]\nattempts = 3\n[memory]\narena_bytes = '8MiB'\n",))
    writer.start()
    one = launch(millrace_bin, pipe, tmp_path / "socket", tmp_path / "log")
    try:
        writer.join()
        result = millrace("reload", "--socket", one.socket)
        assert result.returncode == 2
        assert f"read from {pipe}, which is no file" in result.stderr
    finally:
        assert one.stop() == 0


def test_reload_tells_what_it_did(millrace: Run, serve: StartServe, config: Path) -> None:
    one = serve(config)
    one.wait_ready()
    assert millrace("reload", "--socket", one.socket).stdout == "nothing to apply\n"
    config.write_text(config.read_text() + "[retry]\nattempts = 3\n[list]\nworkers = 9\n")
    result = millrace("reload", "--socket", one.socket)
    assert result.stdout == "applied: retry.attempts; needs a new start: list.workers\n"
    config.write_text(
        """
        [dataset.train]
        uri = "file:///elsewhere/"
        [dataset.other]
        uri = "file:///other/"
        [endpoint.minio]
        endpoint = "http://127.0.0.1:9000"
        [log]
        epochs = "/var/log/epochs"
        [gcs]
        user_project = "project"
        [http]
        headers = { x-name = "value" }
        [list]
        exclude_classes = ["ARCHIVE"]
        """
    )
    assert millrace("reload", "--socket", one.socket).stdout == (
        "applied: retry.attempts, log.epochs; needs a new start: memory.arena_bytes, list.exclude_classes, "
        "http.headers, gcs.user_project, dataset.other, dataset.train.uri, endpoint.minio\n"
    )
    config.write_text("[retry]\nattempt = 3\n")
    result = millrace("reload", "--socket", one.socket)
    assert result.returncode == 2
    assert "did you mean 'attempts'" in result.stderr
