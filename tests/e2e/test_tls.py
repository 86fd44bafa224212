"""All of it over TLS, as every real byte comes: data sets, shards, checkpoints, large uploads, the commands."""

from __future__ import annotations

import gc
import os
import random
import subprocess
from itertools import chain
from pathlib import Path

import pytest

import millrace
import millrace.checkpoint
from tests.conftest import StartDevstore
from tests.python.shards import plain, use, write_shards
from tests.serve import start_supervisor
from tests.stores import s3_environment

LARGE = random.Random(1).randbytes(20_000_000)  # more than one request takes


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_everything(
    devstore: StartDevstore, millrace_bin: Path, tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = write_shards(tmp_path / "root" / "bucket" / "train", 2, 40, 3000)
    authority, config = tmp_path / "authority.pem", tmp_path / "commands.toml"
    server = devstore("--root", tmp_path / "root", "--memory", "--tls", authority)
    assert server.url.startswith("https://")
    trust = f'[http]\nca_bundle = "{authority}"\n'
    config.write_text(trust)
    for name, value in s3_environment(server.url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    (tmp_path / "large").write_bytes(LARGE)
    subprocess.run([millrace_bin, "cp", "-c", config, tmp_path / "large", f"{scheme}://bucket/large"], check=True)

    supervisor = start_supervisor(millrace_bin, tmp_path, server.url, trust)
    try:
        use(supervisor, monkeypatch)
        ds = millrace.IterableDataset(f"{scheme}://bucket/train/{{000..001}}.tar", batch_size=8)
        assert [plain(sample) for sample in chain.from_iterable(ds.batches())] == samples
        with millrace.checkpoint.reader(f"{scheme}://bucket/large") as saved:
            assert saved.read() == LARGE
        for data in (b"small", LARGE):  # at once, and in parts
            with millrace.checkpoint.writer(f"{scheme}://bucket/saved-{len(data)}") as file:
                file.write(data)
            with millrace.checkpoint.reader(f"{scheme}://bucket/saved-{len(data)}") as saved:
                assert saved.read() == data
        del ds, file, saved
        gc.collect()
    finally:
        assert supervisor.stop() == 0, supervisor.log.read_text()


def test_an_authority_that_nobody_trusts(devstore: StartDevstore, millrace_bin: Path, tmp_path: Path) -> None:
    """Of every kind of request: an error with the address and what to set, at once, not after repeats."""
    server = devstore("--synthetic", "bucket:3:10", "--tls", tmp_path / "authority.pem")
    env = {**os.environ, "STORAGE_EMULATOR_HOST": server.url}
    (tmp_path / "file").write_bytes(b"x")
    uri = "gs://bucket/obj-000000000"
    for command in (
        ["cat", uri],
        ["ls", "gs://bucket/"],
        ["cp", str(tmp_path / "file"), "gs://bucket/new"],
        ["rm", uri],
    ):
        done = subprocess.run([millrace_bin, *command], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        assert "certificate" in done.stderr and "[http] ca_bundle" in done.stderr, done.stderr
