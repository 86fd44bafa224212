"""Where the objects of a checkpoint lie, and the errors about one of them.

    <checkpoint_id>/.metadata                        torch's Metadata, pickled; written last, by the coordinator
    <checkpoint_id>/__<rank>_<number>-<save>.distcp  what a rank wrote: the items one after another

Each save writes new names, so that nothing which a `.metadata` names is ever replaced: a checkpoint that is saved
again is the old one until its `.metadata` is the new one, whoever dies in between. Then the objects go that the
replaced `.metadata` names, and no others: those may be of another save that is under way, whose own `.metadata` comes
later. What no `.metadata` names is of a save that failed; it goes when its name is a day old.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable

import torch.distributed as dist

from millrace import Error
from millrace.checkpoint._uri import Place, to_uri

METADATA = ".metadata"
_RANK = r"__(\d+)_"
_DATA = r"\d+(?:-([0-9a-f]+))?\.distcp"  # ours, and torch's own (without a save's number)
_TIME_DIGITS, _CHANCE_DIGITS = 8, 12  # of a save's number: when it began, in seconds since 1970, and chance
ABANDONED_S = 86400.0


def rank_prefix(rank: int) -> str:
    """How the names of a rank's data objects begin, unless a strategy says otherwise."""
    return f"__{rank}_"


def data_name(prefix: str, number: int, save: str) -> str:
    return f"{prefix}{number}-{save}.distcp"


def data_pattern(prefixes: Iterable[str] = ()) -> re.Pattern[str]:
    """What a checkpoint's data objects are called: with the rank, which is the first group, or with one of these.
    Nothing else below it is touched: it may be another checkpoint."""
    others = {prefix for prefix in prefixes if not re.fullmatch(_RANK, prefix)}
    return re.compile(f"(?:{'|'.join([_RANK, *map(re.escape, sorted(others))])}){_DATA}")


DATA = data_pattern()


def new_save() -> str:
    return f"{int(time.time()):0{_TIME_DIGITS}x}{secrets.token_hex(_CHANCE_DIGITS // 2)}"


def metadata_name(rank: int | None) -> str:
    """rank: whose own metadata it is, for torch's use_collectives=False; None for that of all ranks."""
    return METADATA if rank is None else f"__{rank}{METADATA}"


def is_abandoned(name: str) -> bool:
    """Whether the data object of this name, if no `.metadata` names it, is so old that none ever will. Not one in a
    folder: that may be another checkpoint, or of a rank that has the same prefix."""
    match = DATA.fullmatch(name)
    save = match and match[2]
    if not save or len(save) != _TIME_DIGITS + _CHANCE_DIGITS:
        return False
    return int(save[:_TIME_DIGITS], 16) < time.time() - ABANDONED_S


def base_uri(checkpoint_id: Place) -> str:
    """The checkpoint's URI without slashes at its end."""
    uri = to_uri(checkpoint_id).rstrip("/")
    if uri.partition("://")[2] == "":
        raise ValueError(
            f"{checkpoint_id!r} is not a place for a checkpoint: give it a name, as in gs://bucket/run/step-1"
        )
    return uri


def is_checkpoint_id(checkpoint_id: Place) -> bool:
    try:
        base_uri(checkpoint_id)
    except (TypeError, ValueError):
        return False
    return True


class Located:
    """What a reader and a writer of torch.distributed.checkpoint have in common: where the checkpoint is."""

    _uri: str | None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Place) -> bool:
        return is_checkpoint_id(checkpoint_id)

    @property
    def checkpoint_id(self) -> str | None:
        return self._uri


def rank_of_group(rank: int | None = None) -> int:
    """The rank to name in an error."""
    if rank is not None:
        return rank
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def with_rank(error: Exception, rank: int, what: str) -> Exception:
    """An error of the same class, where that class takes a text, whose text names the rank and the object."""
    text = f"rank {rank}: {what}: {error}"
    # An OSError with an errno puts that into its text, which would then hold it twice.
    if type(error) in (ValueError, FileNotFoundError, FileExistsError, PermissionError, TimeoutError, MemoryError):
        return type(error)(text)
    if isinstance(error, Error):
        return type(error)(text)
    if isinstance(error, OSError):
        return Error(text)
    return RuntimeError(f"rank {rank}: {what}: {type(error).__name__}: {error}")
