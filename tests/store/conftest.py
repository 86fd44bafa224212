"""Fixtures of the tests of stores: S3 servers that last as long as a file's tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.serve import DEADLINE_S

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module", params=[pytest.param("versitygw", marks=pytest.mark.nightly), "moto", "plain"])
def s3(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from tests.store import s3_servers  # not needed by the tests of the other stores, nor is botocore

    starts = {"versitygw": s3_servers.start_versitygw, "moto": s3_servers.start_moto, "plain": s3_servers.start_plain}
    server = starts[request.param](tmp_path_factory.mktemp(request.param))
    yield server
    server.server.stop()


@pytest.fixture
def millrace(millrace_bin: Path, tmp_path: Path) -> Run:
    """Runs a command in an empty folder."""
    (tmp_path / "here").mkdir()

    def run(*arguments: str | Path, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
        command = [str(millrace_bin), *map(str, arguments)]
        where, surroundings = tmp_path / "here", {**os.environ, **env}
        return subprocess.run(
            command, input=stdin, capture_output=True, timeout=DEADLINE_S * 2, env=surroundings, cwd=where
        )

    return run
