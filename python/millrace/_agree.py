"""The ranks of a job agree on what they read: the same objects, in one order, from the same place on, or the job stops
before it begins.

Each node lists for itself unless an index is shared, and a bucket may change between two listings. Each rank has its
own copy of the seed, and of the state that it continues from. Where one differs, the order would be another one on
each: samples seen twice or never, silently.

The first rank that comes writes what it has into torch.distributed's own key-value store; the others compare. No rank
waits for another. Does nothing without a process group, since there is no store then.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import socket
import sys
from typing import Any

from . import _torch, _worker
from ._errors import Error

log = logging.getLogger("millrace")
_agreed: dict[tuple[int, str, int], list[str]] = {}  # (pid, key, world) -> values that the store knows
_inherited: Any = None  # the store of the process that this one was forked from


def agree(source: str, world: int, digest: str, objects: int, which: str = "") -> None:
    """Raises millrace.Error where another rank of the process group has another digest for the same source, and the
    same `which` of those that are called so.

    Of the workers of a DataLoader, which read one listing, the first compares, where the loop's process has not.
    """
    if (_torch.worker() or (0, 1))[0] != 0:
        return
    theirs = _other(f"{source}\0{which}" if which else source, world, digest, objects=objects)
    if theirs is not None:
        raise Error(
            f"{source}: rank {_rank()} on {socket.gethostname()} has {objects:,} objects (digest {digest[:12]}), "
            f"rank {theirs['rank']} on {theirs['host']} has {theirs['objects']:,} (digest {theirs['value'][:12]}): "
            "the nodes would train on different data. The bucket changed between two listings, or the configurations "
            'differ: give all nodes one index (index = "gs://..." in [dataset.NAME]; docs/multi-node.md)'
        )


def agree_on_order(source: str, world: int, order: str, place: tuple[int, int] | None) -> None:
    """Raises millrace.Error where another rank reads the source in another order, such as of another seed, or begins
    that epoch after another number of samples. To be called as an iteration begins, by the loop's process: a program
    that reads in several orders begins them in the same sequence on all ranks. Not compared where an earlier attempt of
    the job may have left its own.

    order: all that it depends on but the epoch, in the words of the arguments. place: (epoch, cursor) of the first
    iteration, and of the first one after a state was loaded.
    """
    if _attempt() is None:
        return
    theirs = _other(f"{source}\0order", world, order)
    if theirs is not None:
        raise Error(
            f"{source}: rank {_rank()} on {socket.gethostname()} reads with {order}, rank {theirs['rank']} on "
            f"{theirs['host']} with {theirs['value']}: each rank reads its part of one order, and of two some samples "
            "are read twice and others never. Give all ranks the same, or rank=0, world_size=1 where each is to read "
            "everything (docs/multi-node.md)"
        )
    if place is None:
        return
    epoch, cursor = place
    theirs = _other(f"{source}\0{order}\0epoch {epoch}", world, str(cursor))
    if theirs is not None:
        raise Error(
            f"{source}: rank {_rank()} on {socket.gethostname()} begins epoch {epoch} after {cursor:,} samples, rank "
            f"{theirs['rank']} on {theirs['host']} after {int(theirs['value']):,}: some samples would be read twice, "
            "others never. Load the same state on all ranks: that of any one, taken at the model's step "
            "(docs/multi-node.md)"
        )


def begin(source: str, world: int, order: str, epoch: int) -> str | None:
    """Counts this rank among those that have begun the epoch, in whatever iteration. To be called as one begins, by
    the loop's process. The key for `warn_if_alone`; None: nobody counts."""
    found = store() if world > 1 and _attempt() is not None else None
    if found is None:
        return None
    name = _hashed(f"{source}\0{order}\0{world}\0{epoch}")
    try:
        found.add(f"begun/{name}", 1)
    except RuntimeError as error:  # the job is ending
        log.debug("who begins an epoch is not counted: %s", error)
        return None
    return name


def warn_if_alone(source: str, key: str | None, epoch: int) -> None:
    """Where no other rank has begun the epoch that this one has ended: its samples are a part, and the others' parts
    are read by nobody, or in another epoch. To be called as an iteration ends, after all its batches."""
    found = store() if key is not None else None
    if found is None:
        return
    try:
        begun = found.add(f"begun/{key}", 0)
    except RuntimeError as error:
        log.debug("who has begun an epoch is not known: %s", error)
        return
    if begun == 1:
        log.warning(
            "%s: rank %d has read its part of epoch %d, and no other rank has begun it: with rank=0, world_size=1 a "
            "rank reads everything alone; if a batch was taken on one rank before the training, set_epoch brings them "
            "together (docs/multi-node.md)",
            source,
            _rank(),
            epoch,
        )


def _other(key: str, world: int, value: str, **more: Any) -> dict[str, Any] | None:
    """What the first rank that came with this key has, if it is another value: {value, host, rank, **more}."""
    if world <= 1:
        return None
    values = _agreed.setdefault((os.getpid(), key, world), [])
    if value in values or value in _agreed.get((_worker.parent(), key, world), ()):
        return None
    found = store()
    if found is None:
        return None
    mine = json.dumps({"value": value, "host": socket.gethostname(), "rank": _rank(), **more})
    # A source that has another value later in the same job is compared in another round, on all ranks.
    name = _hashed(f"{key}\0{world}\0{len(values)}")
    theirs: dict[str, Any] = json.loads(found.compare_set(f"agreed/{name}", "", mine))
    if theirs["value"] != value:
        return theirs
    values.append(value)
    return None


def _hashed(text: str) -> str:
    """As a key of the store."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:24]


def store() -> Any:
    """The process group's store, or None. In a forked process it is a connection of its own, for as long as it is kept.

    The parent may be in a call of its connection, whose lock and bytes the two would share.
    """
    found = _default_store()
    if found is not None and found is _inherited:
        try:
            found = found.clone()
        except (AttributeError, RuntimeError) as error:  # an older torch; or the job has ended
            log.debug("what the ranks list is not compared in a forked process: %s", error)
            return None
    if found is None:
        return None
    return sys.modules["torch.distributed"].PrefixStore(f"millrace/{_attempt() or 0}", found)


def _attempt() -> int | None:
    """torchrun's agent may keep its store when it starts the ranks again, with what they wrote before. Each agent
    counts for itself, so among several nodes the attempts cannot be told apart by that: None."""
    environment = os.environ
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return 0
    if environment.get("LOCAL_WORLD_SIZE") != environment.get("WORLD_SIZE"):
        return None
    return int(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _default_store() -> Any:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    try:
        return distributed.distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError, ValueError) as error:  # a group without a store, such as MPI's
        _warn(str(error))
        return None


def _note_fork() -> None:
    global _inherited
    _inherited = _default_store()


os.register_at_fork(after_in_child=_note_fork)


@functools.cache
def _warn(why: str) -> None:
    """Once a process: the store is asked for at each epoch."""
    log.warning("what the ranks list and measure is not compared: torch.distributed has no store (%s)", why)


def _rank() -> int:
    return int(sys.modules["torch.distributed"].get_rank())
