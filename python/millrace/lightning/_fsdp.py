"""FSDPStrategy: each rank saves its shards by itself, through millrace.dcp; asynchronously if asked."""

from __future__ import annotations

import copy
import inspect
import io
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
import torch.distributed
import torch.distributed.checkpoint
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
from torch.distributed.fsdp.api import ShardedOptimStateDictConfig, ShardedStateDictConfig

from .. import checkpoint as store
from ..dcp import StorageReader, StorageWriter
from ..dcp._layout import data_name, rank_prefix
from ..dcp._stage import staged
from ._checkpoint_io import CheckpointIO, remove
from ._location import PathLike, join, location
from ._package import PACKAGE, module

_Base: Any = module("strategies").FSDPStrategy
_dcp: Any = torch.distributed.checkpoint
_states: Any = module("trainer.states")
METADATA = "meta.pt"  # what is neither model nor optimizer, where Lightning's own strategy has it
REST = MetadataIndex("millrace.rest")  # the same, as an object of the checkpoint that .metadata names
if "state_dict_type" not in inspect.signature(_Base.__init__).parameters:
    raise ImportError(f"FSDPStrategy needs Lightning 2.1 or later, for sharded checkpoints; {PACKAGE} is older")


def _sharded(model: Any) -> Any:
    return FullyShardedDataParallel.state_dict_type(
        model,
        StateDictType.SHARDED_STATE_DICT,
        ShardedStateDictConfig(offload_to_cpu=True),
        ShardedOptimStateDictConfig(offload_to_cpu=True),
    )


class _Writer(StorageWriter):
    """Saves with the shards what is neither model nor optimizer: where that fails, all ranks hear of it.

    It is an object like theirs, of a new name, so that .metadata alone decides which steps and which weights belong
    together. A copy goes to where Lightning's own strategy looks for it.
    """

    def __init__(self, place: str, rest: dict[str, Any]) -> None:
        super().__init__(place)
        pickled = io.BytesIO()
        torch.save(rest, pickled)  # as it is now, whenever it is written
        self._rest = pickled.getbuffer()

    def finish(self, metadata: Any, results: Any) -> None:
        save = self._current()
        name = data_name(rank_prefix(0), self._files_per_rank, save.number)  # behind those of rank 0
        self._write(save.object(name))
        stored = WriteResult(REST, len(self._rest), _StorageInfo(name, 0, len(self._rest)))
        super().finish(metadata, [*results, [stored]])
        self._write(save.object(METADATA))

    def _write(self, uri: str) -> None:
        with store.writer(uri, sharers=1) as file:
            file.write(self._rest)


class OneSave(StorageReader):
    """A checkpoint as it was when it was first asked for, in any number of loads: another save may replace it between
    those of the model and of an optimizer."""

    _metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._metadata is None:
            self._metadata = super().read_metadata(*args, **kwargs)
        return copy.copy(self._metadata)


def rest_of(place: str, loaded: StorageReader) -> str:
    """Where the checkpoint that was loaded has what is neither model nor optimizer."""
    stored = loaded._infos.get(REST)
    return join(place, METADATA if stored is None else stored.relative_path)


class FSDPStrategy(_Base):  # type: ignore[misc]
    """Lightning's FSDPStrategy with sharded checkpoints in a bucket: `Trainer(strategy=FSDPStrategy())`.

    A checkpoint is a folder as Lightning's own strategy makes it, and is there once its last object (.metadata) is.
    With use_async=True training goes on as soon as the state is copied. The next save waits for the one before; so does
    the end of the run; a failure is raised there. A checkpoint that ModelCheckpoint wants removed stays until then.
    """

    def __init__(self, *args: Any, use_async: bool = False, **kwargs: Any) -> None:
        if kwargs.setdefault("state_dict_type", "sharded") != "sharded":
            raise ValueError(
                "this FSDPStrategy saves sharded checkpoints; for state_dict_type='full' use Lightning's own with "
                "plugins=[millrace.lightning.CheckpointIO()]"
            )
        super().__init__(*args, **kwargs)
        self._use_async = use_async
        self._io = CheckpointIO()
        self._group: Any = None
        self._thread: ThreadPoolExecutor | None = None
        self._save: Future[Any] | None = None
        self._removals: list[str] = []

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: PathLike, storage_options: Any = None) -> None:
        if storage_options is not None:
            raise TypeError("millrace's FSDPStrategy takes no storage_options: the [checkpoint] configuration is it")
        place = location(self.broadcast(filepath))
        self._settle()
        state = {"model": checkpoint.pop("state_dict")}
        for number, optimizer in enumerate(checkpoint.pop("optimizer_states", [])):
            state[f"optimizer_{number}"] = optimizer
        writer = _Writer(place, checkpoint)
        if not self._use_async:
            _dcp.save(state, storage_writer=writer)
            return
        if self._group is None:  # a group for that thread alone; the state is on the CPU, where nccl does not work
            self._group = torch.distributed.new_group(backend="gloo")
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="millrace-fsdp")
        assert self._thread is not None
        # Not by async_save: the shards of a GPU were brought to the CPU already, and are not copied again.
        state = staged(state, self.root_device.type != "cpu")
        self._save = self._thread.submit(_dcp.save, state, storage_writer=writer, process_group=self._group)
        if self.lightning_module.trainer.state.status != _states.TrainerStatus.RUNNING:
            self._settle()  # nothing comes after it that would wait

    def load_checkpoint(self, checkpoint_path: PathLike, weights_only: bool | None = None) -> dict[str, Any]:
        place = location(self.broadcast(checkpoint_path))
        self._settle()
        model, trainer = self.model, self.lightning_module.trainer
        with _sharded(model):
            state = {"model": model.state_dict()}
            reader = OneSave(place)
            _dcp.load(state, storage_reader=reader)
            model.load_state_dict(state["model"], strict=getattr(self.lightning_module, "strict_loading", True))
            if trainer.state.fn == _states.TrainerFn.FITTING:
                for number, optimizer in enumerate(self.optimizers):
                    name = f"optimizer_{number}"
                    saved = load_sharded_optimizer_state_dict(state["model"], name, reader)
                    mine = FullyShardedDataParallel.optim_state_dict_to_load(model, optimizer, saved[name])
                    optimizer.load_state_dict(mine)
        return self._io.load_checkpoint(rest_of(place, reader), weights_only=weights_only)

    def remove_checkpoint(self, filepath: PathLike) -> None:
        if self._save is not None:
            self._removals.append(location(filepath))
        elif self.is_global_zero:
            remove(location(filepath))

    def teardown(self) -> None:
        try:
            self._settle()
        finally:
            super().teardown()

    def _settle(self) -> None:
        """Waits for the save that is under way; raises if it failed, and what was to be removed after it is kept."""
        if self._save is not None:
            wait([self._save])  # Ctrl-C in it forgets no save
        save, self._save = self._save, None
        removals, self._removals = self._removals, []
        if save is not None:
            save.result()
        if self.is_global_zero:
            for place in removals:
                remove(place)
