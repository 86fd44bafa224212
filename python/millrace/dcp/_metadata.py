"""`.metadata` read as data: the pickle may name torch's classes of checkpoint metadata, and nothing else.

A pickle can call anything that it can name, and who may write to a bucket is not always who may run code here.
"""

from __future__ import annotations

import collections
import enum
import io
import pathlib
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as metadata_module

# Those that this torch has: 2.3.1 knows no StorageMeta.
_METADATA = (
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "Metadata",
    "MetadataIndex",
    "StorageMeta",
    "TensorProperties",
    "TensorStorageMetadata",
    "_MEM_FORMAT_ENCODING",
)
_KNOWN: dict[tuple[str, str], Any] = {
    **{(metadata_module.__name__, name): getattr(metadata_module, name, None) for name in _METADATA},
    (filesystem.__name__, "_StorageInfo"): filesystem._StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
}
# checkpoint_id as it was given to the save; of another system's class only the text is of use.
_PATHS = {"PosixPath": pathlib.PurePosixPath, "WindowsPath": pathlib.PureWindowsPath}
_PATH_MODULES = ("pathlib", "pathlib._local")  # the second: Python 3.13


def _trusted() -> dict[tuple[str, str], Any]:
    """What the program has declared to be safe, as for torch.load; not in torch 2.3.1."""
    declared: Callable[[], list[Any]] = getattr(torch.serialization, "get_safe_globals", list)
    found: dict[tuple[str, str], Any] = {}
    for one in declared():
        known, name = one if isinstance(one, tuple) else (one, f"{one.__module__}.{one.__qualname__}")
        module, _, last = name.rpartition(".")
        found[module, last] = known
    return found


_Unpickler: Any = pickle._Unpickler  # typeshed has its constructor alone


class _Reader(_Unpickler):  # type: ignore[misc]
    """Python's own in place of C's, which cannot be told what BUILD may change: half as fast."""

    dispatch: ClassVar[dict[int, Any]] = dict(_Unpickler.dispatch)

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._named: list[Any] = []  # what find_class has given: shared by the whole process

    def load_build(self) -> None:
        """The state of an instance. Of a class it would be code: methods of it replaced by others that may be named."""
        target = self.stack[-2]
        if isinstance(target, (type, enum.Enum)) or any(target is named for named in self._named):
            raise ValueError(f"its pickle changes {target!r} itself, and not an instance of it: it is not loaded")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> Any:
        known = self._known(module, name)
        if not any(known is named for named in self._named):
            self._named.append(known)
        return known

    def _known(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module, name))
        if known is not None:
            return known
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        if module in _PATH_MODULES and name in _PATHS:
            return _PATHS[name]
        trusted = _trusted().get((module, name))
        if trusted is not None:
            return trusted
        raise ValueError(
            f"its pickle names {module}.{name}, which is not a class of torch's checkpoint metadata, and unpickling "
            "may run any code: it is not loaded. If you trust who wrote it, and torch is 2.5 or later: "
            "torch.serialization.add_safe_globals([...]) (docs/checkpoints.md, What a checkpoint may run)"
        )


def unpickled(data: bytes) -> Any:
    """ValueError where it names anything that is not torch's."""
    return _Reader(io.BytesIO(data)).load()
