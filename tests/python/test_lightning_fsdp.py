"""millrace.lightning.FSDPStrategy under torchrun, with sharded checkpoints in a bucket."""

from __future__ import annotations

import concurrent.futures
import importlib
import os
from pathlib import Path

import pytest

from tests import forked
from tests.conftest import StartDevstore

PROGRAM = Path(__file__).with_name("fsdp_program.py")
KILL_PROGRAM = Path(__file__).with_name("fsdp_kill_program.py")
CONFIG = """
[memory]
arena_bytes = "16MiB"
[checkpoint]
arena_bytes = "80MiB"
"""


@pytest.fixture
def environment(devstore: StartDevstore, tmp_path: Path) -> dict[str, str]:
    """Of a job, with a store that has one bucket."""
    (tmp_path / "store" / "bucket").mkdir(parents=True)
    (tmp_path / "millrace.toml").write_text(CONFIG)
    return {
        **os.environ,
        "STORAGE_EMULATOR_HOST": devstore("--root", tmp_path / "store").url,
        "MILLRACE_CONFIG": str(tmp_path / "millrace.toml"),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def test_sharded_checkpoints(environment: dict[str, str], tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = forked.run([*launcher, PROGRAM, "gs://bucket/run"], tmp_path, environment)
    assert done.returncode == 0, done.stderr
    said = [line[2:] for line in done.stdout.splitlines() if line.startswith("| ")]
    whole = said.index("whole 6")
    losses = said[:whole]
    assert [line.split()[0] for line in losses] == list("123456")
    assert said[whole + 1 : -1] == [*losses[:4], "part 4", *losses[4:], "resumed 6"]
    assert said[-1].startswith("failed ") and "no-such-bucket" in said[-1]
    kept = {file.relative_to(tmp_path / "store" / "bucket" / "run") for file in (tmp_path / "store").rglob("*.pt")}
    # The last of each run, without that which the resumed run removed for its own, and none that is not whole.
    assert {str(file.parent) for file in kept} == {"whole/epoch=0-step=6.ckpt", "after", "resumed/epoch=1-step=6.ckpt"}
    for file in kept:
        folder = tmp_path / "store" / "bucket" / "run" / file.parent
        assert (folder / ".metadata").exists() and len(list(folder.glob("*.distcp"))) == 3


def as_rank(rank: int, world: int, run: str) -> dict[str, str]:
    """What torchrun tells a rank of a node: it would start each as a program that imports Lightning anew."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "GROUP_RANK": 0}
    told = {key: str(number) for key, number in numbers.items()}
    return {**told, "TORCHELASTIC_RUN_ID": f"{run}-{os.getpid()}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


OURS = "millrace.dataflux.lightning.strategies:DatafluxFSDPStrategy"
USERS = "user_strategy:UserStrategy"


@pytest.mark.parametrize(
    ("name", "world", "options"),
    [
        (OURS, 2, ["async"]),
        pytest.param(OURS, 4, ["dtensor", "full"], marks=pytest.mark.nightly),
        (USERS, 2, []),
        pytest.param(USERS, 4, ["async"], marks=pytest.mark.nightly),
        pytest.param(USERS, 2, ["async", "dtensor"], marks=pytest.mark.nightly),
    ],
)
def test_a_killed_run_continues(
    name: str, world: int, options: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    """Killed by SIGKILL, resumed from its last whole checkpoint, the run goes through the losses of one that was not;
    also by a strategy that was written for the reference."""

    def run(folder: str, *more: str) -> tuple[int, list[str]]:
        command: list[str | Path] = [KILL_PROGRAM, name, f"gs://bucket/{folder}", "8", *options]
        command += [f"meet={tmp_path}/{folder}", *more]
        with concurrent.futures.ThreadPoolExecutor(world) as pool:
            each = [environment | as_rank(i, world, folder) for i in range(world)]
            ranks = [pool.submit(forked.run, command, tmp_path, env) for env in each]
        done = ranks[0].result()
        status = max(abs(rank.result().returncode) for rank in ranks)
        return status, [line for line in done.stdout.splitlines() if line.startswith("| ")] or [done.stderr]

    status, whole = run("whole")
    assert (status, [line.split()[1] for line in whole]) == (0, list("12345678")), whole
    status, before = run("killed", "kill=6")
    assert (status != 0, before) == (True, whole[:5])
    bucket = tmp_path / "store" / "bucket"
    folders = [file.parent for file in bucket.glob("killed/*/.metadata") if (file.parent / "meta.pt").exists()]
    last = max(int(folder.name.partition("step=")[2].partition(".")[0]) for folder in folders)
    assert last == 4 or (last == 2 and "async" in options)
    (resumed,) = [folder for folder in folders if f"step={last}." in folder.name]
    assert run("resumed", f"resume=gs://bucket/{resumed.relative_to(bucket)}") == (0, whole[last:])


@pytest.mark.parametrize("kind", ["full", "other"])
def test_only_sharded_ones(kind: str) -> None:
    from millrace.lightning import FSDPStrategy

    with pytest.raises(ValueError, match="this FSDPStrategy saves sharded checkpoints"):
        FSDPStrategy(state_dict_type=kind)


@pytest.mark.parametrize("module", ["millrace.lightning", "millrace.dataflux.lightning"])
def test_a_name_that_is_not_there(module: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
        importlib.import_module(module).nothing  # noqa: B018
