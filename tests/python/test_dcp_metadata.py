"""millrace.dcp: what a `.metadata` may name, without a store. The last test of test_dcp.py runs it again."""

from __future__ import annotations

import pathlib

import pytest
import torch

from millrace.dcp._metadata import unpickled


# Calls that no attribute of an allowed class gives either: the name is looked up as a whole.
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch", "hub.load"),
        ("torch", "load"),
        ("torch.distributed.checkpoint.metadata", "os.system"),
        ("torch.distributed.checkpoint.filesystem", "Path.mkdir"),
        ("pathlib", "PosixPath.mkdir"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("functools", "partial"),
    ],
)
def test_a_metadata_names_nothing_else(module: str, name: str) -> None:
    data = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(one)]) + one.encode() for one in (module, name)) + b"\x93."
    with pytest.raises(ValueError, match=f"{module}.{name}"):
        unpickled(data)


def changing(module: str, name: str, attribute: str) -> bytes:
    """A pickle that gives the class another attribute: BUILD with state for slots."""

    def word(text: str) -> bytes:
        return b"\x8c" + bytes([len(text)]) + text.encode()

    class_ = word(module) + word(name) + b"\x93"
    return b"\x80\x04" + class_ + b"N}" + word(attribute) + word("torch") + word("Size") + b"\x93s\x86b."


@pytest.mark.parametrize(
    ("module", "name", "attribute"),
    [
        ("pathlib", "PosixPath", "__str__"),
        ("torch.distributed.checkpoint.metadata", "Metadata", "__init__"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo", "relative_path"),
        ("torch.serialization", "_get_layout", "__wrapped__"),
        ("collections", "OrderedDict", "get"),
    ],
)
def test_a_metadata_changes_no_class(module: str, name: str, attribute: str) -> None:
    path = str(pathlib.PurePosixPath("a"))
    with pytest.raises(ValueError, match="and not an instance of it: it is not loaded"):
        unpickled(changing(module, name, attribute))
    assert str(pathlib.PurePosixPath("a")) == path and not hasattr(torch.serialization._get_layout, "__wrapped__")
