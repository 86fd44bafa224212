"""Two simulated nodes: each a `millrace run` around its own torchrun agent, with its own supervisor, on one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server, free_port, start_devstore
from tests.e2e.common import RUN_TIMEOUT_S, Seen, icon_files, make_bucket, read_seen
from tests.serve import processes, strike

NODE = Path(__file__).with_name("node.py")
TORCHRUN = Path(sys.executable).with_name("torchrun")
OBJECTS = 1500

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def icons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path, dict[str, str]]]:
    root = tmp_path_factory.mktemp("store")
    digests = make_bucket(root, dict(sorted(icon_files().items())[:OBJECTS]))
    server = start_devstore("--root", root)
    yield server, root, digests
    server.stop()


class Job:
    """A job over len(configs) nodes, each a session: torchrun with two ranks a node, or one bare rank a node."""

    def __init__(
        self, millrace_bin: Path, out: Path, configs: list[Path], endpoint: str, torchrun: bool = True, **options: Any
    ) -> None:
        port, count = free_port(), len(configs)
        self.out, self.name, self.count = out, options["name"], count
        text = json.dumps({"uri": "train", **options})
        self.nodes = []
        for node, config in enumerate(configs):
            command = [str(millrace_bin), "run", "-c", str(config), "--"]
            environment = {**os.environ, "STORAGE_EMULATOR_HOST": endpoint, "OMP_NUM_THREADS": "1"}
            if torchrun:
                command += [str(TORCHRUN), "--nnodes", str(count), "--node-rank", str(node), "--nproc-per-node", "2"]
                command += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
            else:
                command += [sys.executable]
                environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                environment |= {"RANK": str(node), "WORLD_SIZE": str(count)}
            command += [str(NODE), str(out), text]
            log = (out / f"{self.name}-node{node}.log").open("w")
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
            self.nodes.append((process, out / f"{self.name}-node{node}.log"))

    def wait(self) -> list[int]:
        deadline = time.monotonic() + RUN_TIMEOUT_S
        try:
            return [process.wait(max(1.0, deadline - time.monotonic())) for process, _ in self.nodes]
        finally:
            for process, _ in self.nodes:
                if process.poll() is None:
                    kill_node(process)

    def log(self, node: int) -> str:
        return self.nodes[node][1].read_text()

    def seen(self, ranks: int) -> list[Seen]:
        return [read_seen(self.out / f"{self.name}-{rank}.jsonl") for rank in range(ranks)]


def kill_node(process: subprocess.Popen[Any]) -> None:
    """What happens when a machine goes: every process, at once and without a word. torchrun's have sessions of their
    own."""
    parents = {pid: int(fields[1]) for pid, _, fields in processes()}
    node = {process.pid}
    while more := {pid for pid, parent in parents.items() if parent in node} - node:
        node |= more
    for pid in node:
        strike(pid)
    process.wait()


def toml(path: Path, text: str) -> Path:
    path.write_text(f"{text}\n[memory]\narena_bytes = '16MiB'\n[fetch]\nworkers = 1\n")
    return path


def test_two_nodes_read_each_object_once_and_one_node_the_rest(
    icons: tuple[Server, Path, dict[str, str]], tmp_path: Path, millrace_bin: Path
) -> None:
    server, _, digests = icons
    config = toml(tmp_path / "job.toml", "[dataset.train]\nuri = 'gs://icons/'")
    whole = Job(millrace_bin, tmp_path, [config, config], server.url, name="whole", seed=3)
    assert whole.wait() == [0, 0], whole.log(0) + whole.log(1)
    ranks = whole.seen(4)
    samples = [sample for rank in ranks for sample in rank.samples]
    assert len(samples) == OBJECTS and dict(samples) == digests
    assert len({len(rank.epochs[0]) for rank in ranks}) == 1
    assert len({rank.ends[0]["supervisor"] for rank in ranks}) == 2, "each node has a supervisor of its own"

    killed = Job(millrace_bin, tmp_path, [config, config], server.url, name="killed", seed=3, hold_at=5)
    saved = tmp_path / "state.json"
    saved.unlink()
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while not saved.exists() or json.loads(saved.read_text())["cursor"] < 5 * 64:
        assert time.monotonic() < deadline and killed.nodes[0][0].poll() is None, killed.log(0)
        time.sleep(0.05)
    kill_node(killed.nodes[1][0])
    (tmp_path / "go").touch()
    statuses = killed.wait()
    assert statuses[0] != 0, "the ranks of node 1 miss their peers"
    cursor = json.loads(saved.read_text())["cursor"]
    assert 0 < cursor < OBJECTS
    steps = cursor // 64
    before = [name for rank in killed.seen(4) for batch in rank.epochs[0][:steps] for name, _ in batch]
    assert len(before) == cursor

    rest = Job(millrace_bin, tmp_path, [config], server.url, name="rest", seed=3, resume=True)
    assert rest.wait() == [0], rest.log(0)
    after = [name for rank in rest.seen(2) for name, _ in rank.samples]
    assert sorted(before + after) == sorted(digests), "exactly the rest"
    order = [name for step in zip(*(rank.epochs[0] for rank in ranks)) for share in step for name, _ in share]
    resumed = [name for step in zip(*(rank.epochs[0] for rank in rest.seen(2))) for share in step for name, _ in share]
    assert order[cursor:] == resumed, "in the order of the unbroken run"


def test_nodes_that_list_different_objects_stop(
    icons: tuple[Server, Path, dict[str, str]], tmp_path: Path, millrace_bin: Path
) -> None:
    server, _, _ = icons
    one = toml(tmp_path / "one.toml", "[dataset.train]\nuri = 'gs://icons/'")
    two = toml(tmp_path / "two.toml", "[dataset.train]\nuri = 'gs://icons/22x22/'")
    job = Job(millrace_bin, tmp_path, [one, two], server.url, torchrun=False, name="differ")
    statuses = job.wait()
    assert all(status != 0 for status in statuses)
    logs = job.log(0) + job.log(1)
    assert "the nodes would train on different data" in logs and "docs/multi-node.md" in logs
