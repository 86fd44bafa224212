"""examples/dcp_save_load.py: goes on from its last checkpoint, with another number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import forked
from tests.conftest import ROOT
from tests.serve import start_supervisor

EXAMPLE = ROOT / "examples" / "dcp_save_load.py"
CONFIG = """
[memory]
arena_bytes = "16MiB"
[checkpoint]
part_bytes = "5MiB"
arena_bytes = "20MiB"
"""


@pytest.mark.timeout(600)
def test_it_goes_on_with_fewer_ranks(tmp_path: Path, millrace_bin: Path) -> None:
    supervisor = start_supervisor(millrace_bin, tmp_path, "http://127.0.0.1:9", CONFIG)

    def run(count: int, *arguments: str) -> dict[int, float]:
        command: list[str | Path] = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(count),
            EXAMPLE,
            tmp_path / "run",
            *arguments,
        ]
        environment = {**supervisor.environment, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        done = forked.run(command, tmp_path, environment)
        assert done.returncode == 0, done.stderr
        words = [line.split() for line in done.stdout.splitlines()]
        return {int(line[1]): float(line[3]) for line in words if line[0] == "step"}

    whole = run(2, "--steps", "6", "--every", "2")
    assert list(whole) == list(range(1, 7))
    assert sorted(found.name for found in (tmp_path / "run").iterdir()) == ["step-2", "step-4", "step-6"]
    (tmp_path / "run" / "step-6" / ".metadata").unlink()  # as if that save had not been finished
    rest = run(1, "--steps", "6", "--every", "2")
    assert list(rest) == [5, 6]
    assert all(abs(rest[step] - whole[step]) < 1e-4 for step in rest), (whole, rest)
    assert supervisor.stop() == 0, supervisor.log.read_text()
