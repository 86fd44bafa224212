"""Ranks of a job, as processes with a gloo group: what test_dcp runs in each of them."""

from __future__ import annotations

import contextlib
import copy
import gc
import multiprocessing
import os
import pickle
import tempfile
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed._tensor
import torch.distributed.checkpoint
import torch.distributed.checkpoint.state_dict
from torch.distributed.device_mesh import init_device_mesh

import millrace.dcp

# Without types: much of it is not exported in the sense of mypy, and differs between the two versions of torch.
dist: Any = torch.distributed
dcp: Any = torch.distributed.checkpoint
dtensor: Any = torch.distributed._tensor

# Forked from one process that has torch loaded: importing it for each rank takes seconds.
_forkserver = multiprocessing.get_context("forkserver")
_forkserver.set_forkserver_preload(
    ["torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict", "torch._dynamo", "millrace.dcp"]
)
RANK_TIMEOUT_S = 200


def run(world: int, work: Callable[..., Any], *arguments: Any, **environment: str) -> list[Any]:
    """work(*arguments) in each of `world` ranks; what each returned, or raised, in order."""
    with tempfile.TemporaryDirectory(prefix="millrace-ranks-") as folder:
        ends, processes = [], []
        for rank in range(world):
            ours, theirs = _forkserver.Pipe()
            variables = {
                **os.environ,  # the server from which they are forked may have been started by another test
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(world),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
                **environment,
            }
            process = _forkserver.Process(
                target=_rank, args=(rank, world, f"{folder}/store", variables, theirs, work, arguments)
            )
            process.start()
            theirs.close()
            ends.append(ours)
            processes.append(process)
        results = []
        for process, end in zip(processes, ends):
            try:
                results.append(end.recv() if end.poll(RANK_TIMEOUT_S) else TimeoutError("a rank has not ended"))
            except EOFError:
                process.join()
                results.append(RuntimeError(f"a rank ended with {process.exitcode}"))
        for process, end in zip(processes, ends):
            end.close()  # that is what they wait for: all have what the others sent
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()
        return results


def good(world: int, work: Callable[..., Any], *arguments: Any, **environment: str) -> list[Any]:
    """The same, and none may raise."""
    results = run(world, work, *arguments, **environment)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _rank(
    rank: int, world: int, store: str, variables: dict[str, str], end: Connection, work: Any, arguments: Any
) -> None:
    os.environ.clear()
    os.environ.update(variables)

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        result = work(*arguments)
    except BaseException as error:
        result = RuntimeError(f"rank {rank}: {traceback.format_exc()}")
        result.__cause__ = error
    end.send(result)
    with contextlib.suppress(EOFError):
        end.recv()
    gc.collect()  # what holds a connection to a supervisor
    os._exit(0)  # without taking the process groups apart, which waits for other ranks


# ---- states ----


def mesh() -> Any:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def sharded(seed: int, blank: bool = False) -> dict[str, Any]:
    """A state whose tensors are spread over the ranks in several ways; the same values however many ranks there are."""
    random = torch.Generator().manual_seed(seed)
    over = mesh()

    def tensor(*size: int, dtype: Any = torch.float32) -> Any:
        made = torch.randn(size, generator=random).to(dtype)
        return torch.zeros_like(made) if blank else made

    return {
        "model": {
            "rows": dtensor.distribute_tensor(tensor(37, 11), over, [dtensor.Shard(0)]),
            "columns": dtensor.distribute_tensor(tensor(9, 26), over, [dtensor.Shard(1)]),
            "few": dtensor.distribute_tensor(
                tensor(3, 5, dtype=torch.bfloat16), over, [dtensor.Shard(0)]
            ),  # fewer rows than ranks
            "every": dtensor.distribute_tensor(tensor(4, 3), over, [dtensor.Replicate()]),
            "deep": dtensor.distribute_tensor(tensor(1, 12, 4, 3), over, [dtensor.Shard(1)]),
        },
        "optimizer": {"step": tensor(), "moments": dtensor.distribute_tensor(tensor(37, 11), over, [dtensor.Shard(0)])},
        "plain": tensor(300),
    }


def whole(state: Any) -> Any:
    """The state with every DTensor gathered."""
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    if isinstance(state, dtensor.DTensor):
        return state.full_tensor() if hasattr(state, "full_tensor") else state.redistribute(placements=[]).to_local()
    return state


def same(one: Any, other: Any) -> bool:
    """Equal to the bit, types included."""
    if isinstance(one, torch.Tensor):
        if not isinstance(other, torch.Tensor) or one.dtype != other.dtype or one.shape != other.shape:
            return False
        return _bits(one) == _bits(other)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    return bool(one == other)


def _bits(tensor: Any) -> bytes:
    tensor = tensor.detach().resolve_conj().contiguous().clone()
    return bytes(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).tolist())


# ---- what ranks do ----


def save_sharded(uri: Any, seed: int, files: int = 1) -> None:
    dcp.save(sharded(seed), checkpoint_id=uri, storage_writer=millrace.dcp.StorageWriter(files_per_rank=files))


def save_with(pickled: bytes, uri: Path) -> int:
    """Saves with a writer from another process; which supervisor it did that through."""
    writer = pickle.loads(pickled)
    dcp.save({"tensor": torch.ones(3)}, checkpoint_id=uri, storage_writer=writer)
    return int(writer._connection.client.pid)


def load_sharded(uri: Any, seed: int) -> bool:
    state = sharded(seed + 1, blank=True)
    dcp.load(state, checkpoint_id=uri, storage_reader=millrace.dcp.StorageReader())
    return same(whole(state), whole(sharded(seed)))


def model_and_optimizer() -> Any:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.ReLU(), torch.nn.Linear(40, 10))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(model: Any, optimizer: Any, number: int) -> float:
    random = torch.Generator().manual_seed(number)
    loss = model(torch.randn(16, 24, generator=random)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss)


def async_saves(base: str, count: int, options: dict[str, Any]) -> list[Any]:
    """Saves `count` times while training goes on; loads each again and compares with what it was."""

    model, optimizer = model_and_optimizer()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    writer = millrace.dcp.StorageWriter()
    # The gradients' collectives are over the default group, in another thread than the checkpoints'.
    group = torch.distributed.new_group(backend="gloo")
    kept, pending = [], None
    for number in range(count):
        train_step(wrapped, optimizer, number)
        if pending is not None:
            pending.result()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "number": number}
        kept.append(copy.deepcopy(state))
        if not hasattr(dcp, "staging"):  # torch 2.3.1 saves tensors of the CPU as they are by then
            state = copy.deepcopy(state)
        pending = dcp.async_save(
            state, checkpoint_id=f"{base}/step-{number}", storage_writer=writer, process_group=group, **options
        )
        if hasattr(pending, "upload_completion"):
            pending.staging_completion.result()
            pending = pending.upload_completion
        train_step(wrapped, optimizer, 1000 + number)  # must not reach what is being saved
    assert pending is not None
    pending.result()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("millrace-dcp")]
    results = []
    for number, was in enumerate(kept):
        state = {"model": {key: torch.zeros_like(value) for key, value in was["model"].items()}}
        dcp.load(state, checkpoint_id=f"{base}/step-{number}", storage_reader=millrace.dcp.StorageReader())
        results.append(same(state["model"], was["model"]))
    return results


def async_saves_in_process(base: str, count: int) -> list[Any]:
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    return async_saves(base, count, {"async_checkpointer_type": AsyncCheckpointerType.PROCESS})


def async_saves_staged(base: str, count: int) -> list[Any]:
    """With torch's stager copying the state in a thread of its own."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    options = StagingOptions(
        use_pinned_memory=False, use_shared_memory=False, use_async_staging=True, use_non_blocking_copy=False
    )
    return async_saves(base, count, {"async_stager": DefaultStager(options)})


def async_save_fails(uri: str) -> str:
    """The failure is in the future."""

    future = dcp.async_save(
        {"weights": torch.ones(3)}, checkpoint_id=uri, storage_writer=millrace.dcp.StorageWriter(overwrite=False)
    )
    error = future.exception()
    assert error is not None
    return f"{type(error).__name__}: {error}"


def save_fails(uri: str, failing: int, files: int) -> str:
    """Rank `failing` cannot resolve one of its items. What each rank is told."""

    class Planner(dcp.DefaultSavePlanner):  # type: ignore[misc]
        def resolve_data(self, write_item: Any) -> Any:
            if int(os.environ["RANK"]) == failing and write_item.index.fqn == "model.rows":
                raise ArithmeticError("lost")
            return super().resolve_data(write_item)

    writer = millrace.dcp.StorageWriter(files_per_rank=files)
    try:
        dcp.save(sharded(9), checkpoint_id=uri, storage_writer=writer, planner=Planner())
    except dcp.CheckpointException as error:
        return str(error)
    return ""


def load_of_two_saves(uri: str) -> str:
    """Rank 1 reads `.metadata` after another save, which could not delete what it replaced. What each rank is told."""

    def save(value: float) -> None:
        writer = millrace.dcp.StorageWriter()
        writer._remove = lambda *_: None  # type: ignore[method-assign]
        dcp.save({"tensor": torch.full((3,), value)}, checkpoint_id=uri, storage_writer=writer, no_dist=True)

    class Reader(millrace.dcp.StorageReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            if dist.get_rank() == 0:
                save(1)
                metadata = super().read_metadata(*args, **kwargs)
                save(2)
            dist.barrier()
            return metadata if dist.get_rank() == 0 else super().read_metadata(*args, **kwargs)

    state = {"tensor": torch.zeros(3)}
    try:
        dcp.load(state, checkpoint_id=uri, storage_reader=Reader())
    except dcp.CheckpointException as error:
        return str(error)
    return f"loaded {state}"


def fully_sharded(uri: str, save: bool) -> Any:
    """FSDP2: a model and its optimizer after some steps; saved, or loaded and compared."""
    from torch.distributed.fsdp import fully_shard

    def make(steps: int) -> Any:
        model, _ = model_and_optimizer()
        for layer in model:
            fully_shard(layer, mesh=mesh())
        fully_shard(model, mesh=mesh())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for number in range(steps):
            train_step(model, optimizer, number)
        return model, optimizer

    def parts(model: Any, optimizer: Any) -> dict[str, Any]:
        one, other = dcp.state_dict.get_state_dict(
            model, optimizer, options=dcp.state_dict.StateDictOptions(flatten_optimizer_state_dict=True)
        )
        return {"model": one, "optimizer": other}

    trained = make(3 if save else 0)
    if save:
        dcp.save(parts(*trained), checkpoint_id=uri, storage_writer=millrace.dcp.StorageWriter())
        return whole(parts(*trained))
    model, optimizer = trained
    state = parts(model, optimizer)
    dcp.load(state, checkpoint_id=uri, storage_reader=millrace.dcp.StorageReader())
    dcp.state_dict.set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=dcp.state_dict.StateDictOptions(flatten_optimizer_state_dict=True),
    )
    return whole(parts(model, optimizer))


def without_collectives(base: Path) -> bool:
    """torch's use_collectives=False: a `.metadata` a rank."""

    rank = dist.get_rank()
    for number in range(2):
        state = {"weights": torch.arange(5) + 10 * rank + number}
        dcp.save(state, checkpoint_id=base, storage_writer=millrace.dcp.StorageWriter(), use_collectives=False)
    loaded = {"weights": torch.zeros(5, dtype=torch.int64)}
    dcp.load(loaded, checkpoint_id=base, storage_reader=millrace.dcp.StorageReader())
    dcp.save(state, checkpoint_id=base / "all", storage_writer=millrace.dcp.StorageWriter())
    try:
        dcp.save(state, checkpoint_id=base / "all", storage_writer=millrace.dcp.StorageWriter(), use_collectives=False)
    except FileExistsError:
        return same(loaded, state)
    return False
