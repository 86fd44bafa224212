"""Checks of what users pass, so that a wrong argument is an error where it was written."""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TAILS = ("short", "drop", "pad")
POLICIES = ("raise", "skip", "replace")
FORMATS = ("objects", "tar")
MAX_BATCH = 1 << 26
MAX_SEED = (1 << 64) - 1
MAX_WINDOW = 65536
_COLLAPSED = re.compile(r"(gs|gcs|s3(?:\+[A-Za-z0-9.-]+)?|file):/(?!/)")


def integer(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not a bool")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None
    if not low <= number <= high:
        raise ValueError(f"{name} is {number}, it must be from {low} to {high}")
    return number


def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def digest(name: str, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise ValueError(f"{name} is {value!r}, it must be 64 hex digits")
    return value


def choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}, it must be one of {', '.join(map(repr, choices))}")
    return str(value)


def function(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function or None, not {type(value).__name__}")
    return value


def batch_size(value: Any) -> int | None:
    return None if value is None else integer("batch_size", value, 1, MAX_BATCH)


def window(value: Any) -> int | None:
    return None if value is None else integer("window", value, 1, MAX_WINDOW)


def tail(value: Any, drop_last: Any) -> str | None:
    """The tail that the two arguments ask for together, if they do."""
    if boolean("drop_last", drop_last):
        if value not in (None, "drop"):
            raise ValueError(f"drop_last=True and tail={value!r} contradict each other")
        return "drop"
    return None if value is None else choice("tail", value, TAILS)


def rank_pair(rank: Any, world_size: Any) -> tuple[int | None, int | None]:
    if rank is None and world_size is None:
        return None, None
    if rank is None or world_size is None:
        raise ValueError("rank and world_size go together: give both or none")
    world = integer("world_size", world_size, 1, 1 << 20)
    return integer("rank", rank, 0, world - 1), world


def uris(source: Any, shards: bool = False) -> tuple[str, ...]:
    """A URI or several, each as the supervisor wants it. shards: those that end in ".tar" may be several in one."""
    if isinstance(source, (str, os.PathLike)):
        source = (source,)
    if not isinstance(source, Iterable):
        raise TypeError(f"a data set is named by a URI, several URIs, or a name, not by {type(source).__name__}")
    found = tuple(_uri(part) for each in source for part in (_shards(each) if shards else (each,)))
    if not found:
        raise ValueError("a data set needs at least one URI")
    return found


def _shards(value: Any) -> tuple[Any, ...]:
    """What "a.tar::b.tar" joins, with the values of ${VARIABLES}; the supervisor knows what braces stand for."""
    if not isinstance(value, str) or not value.endswith(".tar"):
        return (value,)
    return tuple(re.sub(r"\$\{(\w+)\}", _variable, part) for part in value.split("::"))


def _variable(match: re.Match[str]) -> str:
    value = os.environ.get(match[1])
    if value is None:
        raise ValueError(f"{match[0]} in the name of a shard: there is no environment variable {match[1]}")
    return value


def _uri(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"a URI is a str or a path, not {type(value).__name__}")
    text = os.fspath(value)
    if not isinstance(text, str):
        raise TypeError("a URI is a str, not bytes")
    if "\0" in text or not text:
        raise ValueError(f"{text!r} is not a URI")
    text = uncollapsed(text)
    if "://" in text:
        return text
    # A path is the caller's: the supervisor may have another working folder. One that is no folder is a prefix.
    path = os.path.join(Path.cwd(), text)  # noqa: PTH118 (pathlib drops the slash)
    return f"{path}/" if Path(path).is_dir() and not path.endswith("/") else path


def uncollapsed(text: str) -> str:
    """The URI of which pathlib made text, such as "gs:/bucket/name"; else text. torch and Lightning make Paths too."""
    collapsed = _COLLAPSED.match(text)
    if collapsed is None:
        return text
    rest = text[collapsed.end() :]
    return f"file:///{rest}" if collapsed[1] == "file" else f"{collapsed[1]}://{rest}"


def is_name(source: Any) -> bool:
    """Whether source is a name in the TOML rather than a URI or path."""
    return isinstance(source, str) and source != "" and "/" not in source and not source.startswith(".")


def local_ranks() -> int:
    """How many ranks this node has, by LOCAL_WORLD_SIZE; 1 where that says nothing."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(max(int(text) if text.isdecimal() else 1, 1), 1 << 20)


def resolve_rank(rank: int | None, world: int | None) -> tuple[int, int]:
    """(rank, world): the arguments, else torch.distributed if initialised, else RANK and WORLD_SIZE, else 0 of 1."""
    if rank is not None and world is not None:
        return rank, world
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        try:
            found = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        except ValueError:
            raise ValueError("RANK and WORLD_SIZE in the environment must be integers") from None
        if not 0 <= found[0] < found[1]:
            raise ValueError(f"RANK={found[0]} and WORLD_SIZE={found[1]} in the environment do not fit")
        return found
    return 0, 1
