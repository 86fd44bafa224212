"""The ranks of a job agree on what they read: all of them list the same objects, or the job stops before it begins.

Each node lists for itself unless an index is shared, and a bucket may change between two listings. Then the order,
which is a function of the listing, would be another one on each node: samples seen twice or never, silently.
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
_agreed: dict[tuple[int, str, int], list[str]] = {}  # (pid, source, world) -> digests that the store knows
_inherited: Any = None  # the store of the process that this one was forked from


def agree(source: str, world: int, digest: str, objects: int, which: str = "") -> None:
    """Raises millrace.Error where another rank of the process group has another digest for the same source, and the
    same `which` of those that are called so.

    The first rank that comes writes what it has into torch.distributed's own key-value store; the others compare. No
    rank waits for another. Does nothing without a process group, since there is no store then. Of the workers of a
    DataLoader, which read one listing, the first compares, where the loop's process has not.
    """
    if world <= 1 or (_torch.worker() or (0, 1))[0] != 0:
        return
    key = f"{source}\0{which}" if which else source
    digests = _agreed.setdefault((os.getpid(), key, world), [])
    if digest in digests or digest in _agreed.get((_worker.parent(), key, world), ()):
        return
    found = store()
    if found is None:
        return
    mine = json.dumps({"digest": digest, "objects": objects, "host": socket.gethostname(), "rank": _rank()})
    # A source that is listed again later in the same job is compared in another round, on all ranks.
    name = hashlib.sha256(f"{key}\0{world}\0{len(digests)}".encode("utf-8", "surrogateescape")).hexdigest()[:24]
    theirs = json.loads(found.compare_set(f"digest/{name}", "", mine))
    if theirs["digest"] != digest:
        raise Error(
            f"{source}: rank {_rank()} on {socket.gethostname()} has {objects:,} objects (digest {digest[:12]}), "
            f"rank {theirs['rank']} on {theirs['host']} has {theirs['objects']:,} (digest {theirs['digest'][:12]}): "
            "the nodes would train on different data. The bucket changed between two listings, or the configurations "
            'differ: give all nodes one index (index = "gs://..." in [dataset.NAME]; docs/multi-node.md)'
        )
    digests.append(digest)


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
    return sys.modules["torch.distributed"].PrefixStore(f"millrace/{_attempt()}", found)


def _attempt() -> str:
    """torchrun's agent may keep its store when it starts the ranks again, with what they wrote before.

    Each agent counts for itself, so among several nodes the attempts cannot be told apart by that.
    """
    environment = os.environ
    kept = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not kept or environment.get("LOCAL_WORLD_SIZE") != environment.get("WORLD_SIZE"):
        return "0"
    return environment.get("TORCHELASTIC_RESTART_COUNT", "0")


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
