"""Saves and loads one checkpoint of many nodes with torch.distributed.checkpoint, without a GPU, and says how long.

The state dict is PADDING_SIZE tensors of LAYER_SIZE x 1000 floats, dealt to the nodes in turn, so that each node saves
its own and loads its own. All settings are environment variables, as in the reference's simulated benchmark:

    CKPT_DIR_PATH   gs://BUCKET/FOLDER; each sample is a checkpoint below it
    WORLD_SIZE      nodes
    LAYER_SIZE      rows of a tensor
    PADDING_SIZE    tensors; 4000
    SAMPLE_COUNT    saves, and loads; 8
    PROJECT         of Google Cloud; only the reference's own writer asks for it
    USE_FSSPEC      true: torch's FsspecWriter and FsspecReader
    USE_DATAFLUX    true: GCSDistributedWriter and GCSDistributedReader of gcs-torch-dataflux
    USE_ASYNC       true: async_save; blocked is until it returns

Where COORDINATOR_ADDRESS is set this process is one node (JOB_INDEX, JOB_COMPLETION_INDEX and PROCESSES_IN_JOB say
which, and MASTER_PORT where they meet: deploy/checkpoint-benchmark.yaml). Otherwise it starts WORLD_SIZE processes
here. The first node writes one line of JSON to standard output.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict_loader as loader
import torch.distributed.checkpoint.state_dict_saver as saver
from torch.multiprocessing.spawn import spawn

from bench.checkpoint.common import SLAB_WORDS, State, slab
from bench.meter import Family
from bench.process import memory_watched

COLUMNS = 1000
GIB = 1 << 30
PR_SET_CHILD_SUBREAPER = 36
COORDINATOR_WAIT_S = 600
SETTLE_S, QUIET_S = 2.0, 0.004


def is_true(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes")


@dataclass(frozen=True)
class Settings:
    project: str
    folder: str
    world: int
    rows: int
    tensors: int
    samples: int
    storage: str
    later: bool

    @classmethod
    def of_environment(cls) -> Settings:
        missing = [name for name in ("CKPT_DIR_PATH", "WORLD_SIZE", "LAYER_SIZE") if name not in os.environ]
        if missing:
            raise SystemExit(f"set {', '.join(missing)} (see bench/checkpoint/nodes.py)")
        return cls(
            project=os.environ.get("PROJECT", ""),
            folder=os.environ["CKPT_DIR_PATH"].rstrip("/"),
            world=int(os.environ["WORLD_SIZE"]),
            rows=int(os.environ["LAYER_SIZE"]),
            tensors=int(os.environ.get("PADDING_SIZE", "4000")),
            samples=int(os.environ.get("SAMPLE_COUNT", "8")),
            storage="fsspec" if is_true("USE_FSSPEC") else "dataflux" if is_true("USE_DATAFLUX") else "millrace",
            later=is_true("USE_ASYNC"),
        )

    @property
    def size(self) -> int:
        return self.tensors * self.rows * COLUMNS * 4


def writer_for(settings: Settings, path: str) -> Any:
    if settings.storage == "millrace":
        return importlib.import_module("millrace.dcp").StorageWriter(path)
    if settings.storage == "fsspec":
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        return FsspecWriter(path, sync_files=False)
    return dataflux().GCSDistributedWriter(path, settings.project)


def dataflux() -> Any:
    """The reference's module. It closes a stream that today's torch has closed already, and uploads it again, which
    fails: here the second time does nothing, so that it can be measured."""
    from dataflux_pytorch.lightning import gcs_filesystem as module

    if not hasattr(module, "UploadedTwice"):
        module.UploadedTwice = module.DatafluxCheckpointBuffer

        class UploadedOnce(module.UploadedTwice):  # type: ignore[misc]
            def close(self) -> None:
                if not self.closed:
                    super().close()

        module.DatafluxCheckpointBuffer = UploadedOnce
    return module


def reader_for(settings: Settings, path: str) -> Any:
    if settings.storage == "millrace":
        return importlib.import_module("millrace.dcp").StorageReader(path)
    if settings.storage == "fsspec":
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

        return FsspecReader(path)
    return dataflux().GCSDistributedReader(path, settings.project)


def share(settings: Settings, rank: int) -> State:
    """What one node holds."""
    noise, words = slab(), settings.rows * COLUMNS
    noise = noise.repeat(words // SLAB_WORDS + 2)
    found = {}
    for number in range(rank, settings.tensors, settings.world):
        at = (number * 7919) % SLAB_WORDS
        found[f"padding.{number}"] = (noise[at : at + words] ^ number).view(torch.float32).reshape(-1, COLUMNS)
    return found


@dataclass
class Sample:
    """One save or load on one node."""

    blocked_s: float = 0
    total_s: float = 0
    cpu_s: float = 0
    memory: int = 0  # the most that this node's processes held


class Meter:
    """This process and its descendants, without what looking at them costs."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what outlives its parent stays in this family
        self.family, self.spent_s = Family(os.getpid()), 0.0

    def cpu_s(self) -> float:
        begun = time.thread_time()
        found = self.family.cpu_s()
        self.spent_s += time.thread_time() - begun
        return found - self.spent_s

    def settled_cpu_s(self) -> float:
        """When nobody works any more."""
        end, last = time.monotonic() + SETTLE_S, self.cpu_s()
        while time.monotonic() < end:
            time.sleep(0.05)
            now = self.cpu_s()
            if now - last < QUIET_S:
                return now
            last = now
        return last


@contextmanager
def measured(sample: Sample, meter: Meter, with_memory: bool) -> Iterator[float]:
    dist.barrier()
    before, begun = meter.cpu_s(), time.perf_counter()
    with memory_watched(meter.family) if with_memory else nullcontext() as memory:
        yield begun
        dist.barrier()
        sample.total_s = time.perf_counter() - begun
    sample.blocked_s = sample.blocked_s or sample.total_s
    sample.cpu_s = meter.settled_cpu_s() - before
    sample.memory = memory.total if memory else 0


def save(settings: Settings, state: State, path: str, meter: Meter, first: bool) -> Sample:
    sample = Sample()
    with measured(sample, meter, first) as begun:
        if settings.later:
            promise: Any = saver.async_save(state, checkpoint_id=path, storage_writer=writer_for(settings, path))
            sample.blocked_s = time.perf_counter() - begun
            promise.result()
        else:
            saver.save(state, checkpoint_id=path, storage_writer=writer_for(settings, path))
    return sample


def load(settings: Settings, state: State, path: str, meter: Meter, first: bool) -> Sample:
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    sample = Sample()
    with measured(sample, meter, first):
        loader.load(found, checkpoint_id=path, storage_reader=reader_for(settings, path))
    for name, tensor in state.items():
        if not torch.equal(found[name].view(torch.int32), tensor.view(torch.int32)):
            raise RuntimeError(f"wrong data: {name} is not what was saved")
    return sample


def run(rank: int, settings: Settings) -> None:
    """One node. The process group exists."""
    torch.set_num_threads(1)
    meter = Meter()
    idle = meter.family.memory().total
    state = share(settings, rank)
    found: dict[str, list[Sample]] = {"save": [], "load": []}
    for kind, operate in (("save", save), ("load", load)):
        for number in range(settings.samples):
            path = f"{settings.folder}/{settings.storage}/sample-{number}"
            found[kind].append(operate(settings, state, path, meter, number == 0))
    gathered: list[Any] = [None] * settings.world
    dist.all_gather_object(gathered, (idle, sum(t.nbytes for t in state.values()), found))
    if rank == 0:
        tell(settings, gathered)
    dist.destroy_process_group()


def tell(settings: Settings, nodes: list[tuple[int, int, dict[str, list[Sample]]]]) -> None:
    report: dict[str, Any] = {**asdict(settings), "bytes": settings.size}
    for kind in ("save", "load"):
        samples = list(zip(*(found[kind] for _, _, found in nodes)))  # of all nodes, one by one
        blocked = [max(node.blocked_s for node in sample) for sample in samples]
        total = [max(node.total_s for node in sample) for sample in samples]
        cpu = [sum(node.cpu_s for node in sample) for sample in samples]
        copies = 1 if kind == "save" else 2  # the saved one is still there to compare with
        report[kind] = {
            "blocked_s": statistics.median(blocked[1:] or blocked),
            "total_s": statistics.median(total[1:] or total),
            "cpu_s_per_gib": statistics.median(cpu[1:] or cpu) / settings.size * GIB,
            "memory_over": sum(found[kind][0].memory - idle - copies * held for idle, held, found in nodes),
            "all_s": total,
        }
        say = f"{kind} of {settings.size / 1e9:.2f} GB by {settings.world} nodes through {settings.storage}: "
        print(f"{say}{report[kind]['total_s']:.2f} s, {total}", file=sys.stderr)
    print(json.dumps(report), flush=True)


def local(rank: int, settings: Settings, port: int) -> None:
    store = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=settings.world)
    run(rank, settings)


def address_of(name: str) -> str:
    """Pods start in any order: the first one's name may not be there yet."""
    end = time.monotonic() + COORDINATOR_WAIT_S
    while True:
        try:
            return socket.gethostbyname(name)
        except socket.gaierror:
            if time.monotonic() > end:
                raise
            time.sleep(2)


def main() -> None:
    settings = Settings.of_environment()
    coordinator = os.environ.get("COORDINATOR_ADDRESS")
    if coordinator:
        number = {name: int(os.environ.get(name, "0")) for name in ("JOB_INDEX", "JOB_COMPLETION_INDEX")}
        rank = number["JOB_INDEX"] * int(os.environ.get("PROCESSES_IN_JOB", "1")) + number["JOB_COMPLETION_INDEX"]
        where = f"tcp://{address_of(coordinator)}:{os.environ.get('MASTER_PORT', '29500')}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=settings.world)
        run(rank, settings)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(local, args=(settings, port), nprocs=settings.world)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
