"""CheckpointIO: Lightning's checkpoints through millrace.checkpoint."""

from __future__ import annotations

import inspect
import logging
import shutil
from typing import Any

import torch

from .. import _supervisor
from .. import checkpoint as store
from ..checkpoint._uri import object_uri
from ._location import PathLike, join, local, location
from ._package import module, register

log = logging.getLogger("millrace")
_Base: Any = module("plugins.io").CheckpointIO
# Lightning 2.6 asks its users about weights_only. Before, it read everything, and there was no way to ask for that.
_ASKS_ABOUT_WEIGHTS = "weights_only" in inspect.signature(_Base.load_checkpoint).parameters


def to_cpu(storage: Any, _location: str) -> Any:
    return storage


class CheckpointIO(_Base):  # type: ignore[misc]
    """Saves and loads a Trainer's checkpoints: `Trainer(plugins=[CheckpointIO()])`. Local paths work as gs:// ones do.

    A save returns when the store has confirmed the whole object. With wait=False it returns once the checkpoint is in
    shared memory: the upload goes on, finishes even if this process dies, and a failure is raised by the next save or
    at the end of the run. A checkpoint that ModelCheckpoint wants removed is then kept until the saves before it are
    confirmed, and stays if one of them failed, or if it is saved again before that.
    """

    def __init__(self, *, wait: bool = True) -> None:
        super().__init__()
        register(type(self))
        _supervisor.expect_writer()
        self._wait = wait
        self._saves: dict[str, store.Save] = {}
        self._removals: list[tuple[str, list[store.Save]]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_saves": {}, "_removals": []}  # they are this process's

    def save_checkpoint(self, checkpoint: dict[str, Any], path: PathLike, storage_options: Any = None) -> None:
        if storage_options is not None:
            raise TypeError("millrace's CheckpointIO takes no storage_options: the [checkpoint] configuration is it")
        place = location(path)
        self._settle(earlier=place)
        # What was to be removed there, or a folder that it lies in, is what was there before.
        self._removals = [(gone, saves) for gone, saves in self._removals if not f"{place}/".startswith(f"{gone}/")]
        file = local(place)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        # One rank saves for all: it need not leave room for the others.
        out: Any
        with store.writer(place, sharers=1) as out:
            torch.save(checkpoint, out)
            if not self._wait:
                self._saves[place] = out.close(wait=False)

    def load_checkpoint(
        self, path: PathLike, map_location: Any = to_cpu, weights_only: bool | None = None, *, state: Any = None
    ) -> dict[str, Any]:
        """What torch.load returns, on the CPU unless map_location says otherwise. `state` is not used."""
        place = location(path)
        if place in self._saves:
            self._saves[place].result()
        if weights_only is None and not _ASKS_ABOUT_WEIGHTS:
            weights_only = False
        file: Any
        with store.reader(place) as file:
            loaded: dict[str, Any] = torch.load(file, map_location=map_location, weights_only=weights_only)
        return loaded

    def remove_checkpoint(self, path: PathLike) -> None:
        """Removes an object, or all objects of a checkpoint that is a folder. It is none if there is nothing."""
        self._removals.append((location(path), list(self._saves.values())))
        self._settle()

    def teardown(self) -> None:
        """Waits for the saves that are under way. Raises if one failed."""
        self._settle(wait=True)

    def _remove(self, place: str) -> None:
        remove(place)

    def _settle(self, wait: bool = False, earlier: str | None = None) -> None:
        """Takes note of what has ended: all saves (wait), or that to one place, are waited for. Raises the first
        failure, and logs the others."""
        ended = [each for each in self._saves.items() if wait or each[0] == earlier or each[1].done()]
        errors = [save.exception() for _, save in ended]  # waits: Ctrl-C in it forgets no save
        failure: BaseException | None = None
        for (place, save), error in zip(ended, errors):
            del self._saves[place]
            if error is not None and failure is not None:
                log.error("the save of %s failed too: %s", save.uri, error)
            failure = failure or error
        waiting, self._removals = self._removals, []
        for place, saves in waiting:
            if not all(save.done() for save in saves):
                self._removals.append((place, saves))
            elif any(save.exception() is not None for save in saves):
                log.warning("%s is kept: a checkpoint that was to follow it could not be saved", place)
            else:
                try:
                    self._remove(place)
                except Exception as error:
                    if failure is not None:
                        log.error("%s could not be removed: %s", place, error)
                    failure = failure or error
        if failure is not None:
            raise failure


PARTS = (".distcp", "/meta.pt")  # of torch's and Lightning's sharded checkpoints, beside .metadata


def remove(place: str, missing_ok: bool = True) -> None:
    """Removes an object or a folder of objects, whichever is there."""
    file = local(place)
    if file is None:
        object_uri(place)  # not a bucket
        # A checkpoint in parts is one by its .metadata: what is left of an interrupted removal is none.
        store.remove(join(place, ".metadata"), missing_ok=True)
        store.remove(place, recursive=True, missing_ok=missing_ok)
    elif file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
    else:
        file.unlink(missing_ok=missing_ok)


def remove_only(place: str, missing_ok: bool = True) -> None:
    """The same for an object of a bucket, or a checkpoint in parts: by its .metadata, or what an interrupted removal
    has left of it. Another folder stays."""
    object_uri(place)
    try:
        store.remove(join(place, ".metadata"))
    except FileNotFoundError:
        try:
            store.remove(place)
            return
        except FileNotFoundError:
            left = store.list(f"{place.rstrip('/')}/")
            if not left or not all(name.endswith(PARTS) for name in left):
                if not missing_ok:
                    raise
                return
    store.remove(place, recursive=True, missing_ok=True)
