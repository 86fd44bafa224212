"""exists(), remove() and list(): by the programs of millrace, which hold all network code and all credentials."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .. import _supervisor
from .._connection import connect
from .._errors import from_name
from . import _changes
from ._uri import Place, object_uri, to_uri

AT_ONCE = 500  # names in one command line


def exists(uri: Place) -> bool:
    """Whether there is an object of that name, or one below it ("gs://bucket/run1" for "gs://bucket/run1/model.pt").

    PermissionError, millrace.Error and ValueError as elsewhere: no answer is not False.
    """
    return bool(listed(to_uri(uri), limit=1))


def list_objects(prefix: Place) -> list[str]:
    """The URIs of all objects below a prefix, in the order of their bytes: that of the name itself, and of what lies
    below it as in a folder. Empty where there is nothing.
    """
    return [str(item["uri"]) for item in listed(to_uri(prefix), recursive=True)]


def read_object(uri: str) -> bytes:
    """All of a small object, past the fetch workers and their memory. FileNotFoundError where there is none."""
    done = _tool("cat", "--json", "--", uri)
    if done.returncode == 0:
        return done.stdout.encode("utf-8", "surrogateescape")
    failure = _failure(done)
    raise from_name(failure["code"], failure["error"])


def remove(uri: Place, *, recursive: bool = False, missing_ok: bool = False) -> None:
    """Deletes an object; with recursive=True that and everything below it as in a folder; of files, the folders too,
    and links to folders, but not what lies behind them.

    FileNotFoundError where there is nothing, unless missing_ok. Each delete carries the generation that was looked up:
    what somebody has written meanwhile stays.
    """
    target = to_uri(uri) if recursive else object_uri(uri)
    done = _tool("rm", "--json", *(["-r"] if recursive else []), "--", target)
    _changes.note()
    report: dict[str, Any] = json.loads(done.stdout) if done.stdout else _failure(done)
    failed = report.get("failed", [report])
    missing = [one for one in failed if one["code"] == "not found"]
    for one in failed:
        if one["code"] != "not found":
            raise from_name(one["code"], one["error"])
    if missing and not missing_ok:
        raise from_name(missing[0]["code"], missing[0]["error"])
    if recursive:
        remove_folders(target)


def copy(source: str, target: str) -> None:
    """One object to another name, through this machine, verified."""
    done = _tool("cp", "--json", "--", source, target)
    _changes.note()
    if done.returncode != 0:
        failure = _failure(done)
        raise from_name(failure["code"], failure["error"])


def remove_all(uris: Iterable[str]) -> None:
    """Deletes these objects, many at once: the failures are raised, FileNotFoundError among them, after the others."""
    failures = remove_each(uris, missing_ok=False)
    if failures:
        raise failures[0]


def remove_each(uris: Iterable[str], missing_ok: bool = True) -> list[Exception]:
    """Deletes these objects, many at once. Returns why some are still there, or were not there (unless missing_ok)."""
    failures: list[Exception] = []
    rest = list(uris)
    while rest:
        some, rest = rest[:AT_ONCE], rest[AT_ONCE:]
        done = _tool("rm", "--json", "--", *some)
        _changes.note()
        report: dict[str, Any] = json.loads(done.stdout) if done.stdout else _failure(done)
        failures += [
            from_name(one["code"], one["error"])
            for one in report.get("failed", [report])
            if one["code"] != "not found" or not missing_ok
        ]
    return failures


def remove_folders(uri: str) -> None:
    """Those of this machine that are empty, and links to folders: a store has none, and the next checkpoint of the name
    shall find none."""
    if not uri.startswith("file://"):
        return
    for root, folders, _ in os.walk(uri[len("file://") :], topdown=False):
        with contextlib.suppress(OSError):
            for each in (Path(root, name) for name in folders):
                if each.is_symlink():
                    each.unlink()
            Path(root).rmdir()


def listed(uri: str, recursive: bool = False, limit: int | None = None) -> list[dict[str, Any]]:
    """The lines of `millrace ls --json`; none where nothing matches. FileNotFoundError: there is no such bucket."""
    options = [*(["-r"] if recursive else []), *([] if limit is None else ["--limit", str(limit)])]
    done = _tool("ls", "--json", *options, "--", uri)
    if done.returncode == 0:
        return [json.loads(line) for line in done.stdout.split("\n") if line]
    failure = _failure(done)
    if failure["code"] == "not found" and (uri.startswith("file://") or failure["error"].startswith("nothing matches")):
        return []
    raise from_name(failure["code"], failure["error"])


def _failure(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The program's error: the last line of its standard error."""
    lines = done.stderr.strip().split("\n")
    with contextlib.suppress(ValueError):
        failure = json.loads(lines[-1])
        if isinstance(failure, dict) and {"code", "error"} <= failure.keys():
            return failure
    line = lines[-1] or f"it ended with status {done.returncode}"
    return {"code": "internal", "error": f"{' '.join(done.args)}: {line}"}


def _tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of millrace with the configuration of this job's supervisor; without one, of MILLRACE_CONFIG."""
    path = os.environ.get("MILLRACE_SOCKET")
    if not path:
        config = os.environ.get("MILLRACE_CONFIG")
        asked = _supervisor.NO_SETTINGS if config else _supervisor.preferred()
        if asked.toml:
            config = "/proc/self/fd/0"
        # Before "--": everything after it is a name.
        options = ["-q", "-c", config] if config else ["-q"]
        return _run([str(_supervisor.find_program("millrace")), arguments[0], *options, *arguments[1:]], None, asked)
    fd = connect(path, _supervisor.CONNECT_TIMEOUT_MS).client.config()
    try:
        return _run([str(_supervisor.find_program("millrace-worker")), *arguments], fd)
    finally:
        os.close(fd)


def _run(
    command: list[str], config_fd: int | None, asked: _supervisor.Settings = _supervisor.NO_SETTINGS
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **dict(asked.environment)}
    if config_fd is not None:
        environment["MILLRACE_CONFIG_FD"] = str(config_fd)
    with _supervisor.text_file(asked.toml) as stdin:
        done = subprocess.run(
            command,
            stdin=stdin,
            capture_output=True,
            env=environment,
            pass_fds=() if config_fd is None else (config_fd,),
            check=False,
        )
    # Not by subprocess, which would change the ends of lines too.
    out, errors = (text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, errors)
