"""checkpoint.prepare: the write workers and their memory are there before the first save, where one is expected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millrace import Error
from millrace._ring import Client, Writer
from tests.serve import StartServe, Supervisor, wait_for

MIB = 1 << 20
SIGNS = {
    "prepare": "from millrace import checkpoint; checkpoint.prepare()",
    "CheckpointIO": "from millrace import lightning; lightning.CheckpointIO()",
    "StorageWriter": "from millrace import dcp; dcp.StorageWriter('/nowhere')",
    "DatafluxCheckpoint": "from millrace.dataflux import dataflux_checkpoint as d; d.DatafluxCheckpoint('p', 'bucket')",
}


def configured(folder: Path, lines: str = "") -> Path:
    path = folder / "millrace.toml"
    path.write_text(f'[checkpoint]\narena_bytes = "20MiB"\npart_bytes = "5MiB"\n{lines}\n')
    return path


def run(one: Supervisor, program: str) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], env=one.environment, check=True, timeout=200)


def write_workers(one: Supervisor) -> list[str]:
    return [worker["state"] for worker in one.stat()["workers"] if worker["role"] == "write"]


def wait_prepared(one: Supervisor) -> None:
    wait_for(lambda: write_workers(one) == ["running"] * 2, "two write workers")
    assert one.stat()["checkpoint"]["arena_bytes"] == 20 * MIB


@pytest.mark.parametrize("sign", SIGNS)
def test_who_will_save_finds_the_memory_there(serve: StartServe, tmp_path: Path, sign: str) -> None:
    one = serve(configured(tmp_path))
    assert not write_workers(one)
    run(one, SIGNS[sign])
    wait_prepared(one)
    client = Client(str(one.socket), "job")
    writer = client.open_writer((tmp_path / "a").as_uri())
    assert isinstance(writer, Writer)  # at the first question
    writer.abort()
    writer.close()


def test_who_reads_takes_no_memory(serve: StartServe, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    one = serve(configured(tmp_path))
    run(
        one,
        "import millrace, millrace.dataflux, millrace.checkpoint as c; "
        f"assert c.reader({str(tmp_path / 'a')!r}).read() == b'abc' and len(millrace.MapDataset({str(tmp_path)!r}))",
    )
    assert not write_workers(one) and one.stat()["checkpoint"]["arena_bytes"] == 0


def test_never_and_always(serve: StartServe, tmp_path: Path) -> None:
    one = serve(configured(tmp_path, 'prepare = "never"'))
    run(one, SIGNS["prepare"])
    assert not write_workers(one)
    one.stop()
    wait_prepared(serve(configured(tmp_path, 'prepare = "always"')))


def test_memory_that_is_not_there_is_said_and_tried_again(serve: StartServe, tmp_path: Path) -> None:
    path = configured(tmp_path)
    path.write_text('[checkpoint]\narena_bytes = "15TiB"\n')
    one = serve(path)
    run(one, SIGNS["prepare"])
    assert "no shared memory of 15.0 TiB for checkpoints: only " in one.log.read_text()
    with pytest.raises(Error, match=r"no shared memory of 15\.0 TiB"):
        Client(str(one.socket), "job").open_writer((tmp_path / "a").as_uri())


def test_a_private_supervisor_is_asked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_SOCKET", raising=False)
    program = (
        "import json, time; from millrace import checkpoint; from millrace import _supervisor\n"
        "checkpoint.prepare(); client = _supervisor._kept.client\n"
        "while [w['state'] for w in json.loads(client.stat())['workers'] if w['role'] == 'write'] != ['running'] * 2:\n"
        "    time.sleep(0.01)\n"
        f"with checkpoint.writer({str(tmp_path / 'a')!r}) as file: file.write(b'abc')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=200)
    assert (tmp_path / "a").read_bytes() == b"abc"
