"""Tensors without copies: packed for torch.save, and found again in what it wrote.

torch.save writes a zip file without compression: `archive/data.pkl` (the tensor's description), a few short records,
`archive/data/0` (its storage), and more short records. Read from the front, the first KiB gives where the storage lies,
so that it can be read straight into the tensor that is loaded; the directory at the end is not needed.
"""

from __future__ import annotations

import collections
import ctypes
import io
import pickle
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

HEAD_BYTES = 1024  # of an item: torch 2.15 puts the storage at 704, 2.3.1 at 448, for tensors of few dimensions

element_size: Any = torch._utils._element_size

_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_LOCAL_MAGIC, _DESCRIPTOR_MAGIC = b"PK\x03\x04", b"PK\x07\x08"
_DESCRIPTOR_SIZES = (16, 24)  # the second with sizes of 8 bytes


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the CPU, with a storage that holds nothing else: torch.save writes storages whole.

    A view that lies in one piece gets that piece of its storage, without a copy.
    """
    tensor = tensor.cpu()
    nbytes = tensor.numel() * tensor.element_size()
    if type(tensor) is not torch.Tensor:  # it may have no storage of its own
        return tensor
    if tensor.untyped_storage().nbytes() == nbytes:
        return tensor
    if nbytes == 0 or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or not tensor.is_contiguous():
        return tensor.clone()
    begin = tensor.storage_offset() * tensor.element_size()
    piece = tensor.untyped_storage()[begin : begin + nbytes]
    return torch.empty(0, dtype=tensor.dtype).set_(piece, 0, tensor.size(), tensor.stride())


class Stored(NamedTuple):
    """A tensor in the bytes of its item."""

    dtype: torch.dtype
    size: torch.Size
    begin: int  # in the item: where the tensor's bytes begin
    nbytes: int  # its bytes: it is contiguous
    end: int  # in the item: where its storage ends

    def rows(self, offsets: Sequence[int], lengths: Sequence[int]) -> tuple[Stored, bool]:
        """The part along the first dimension that holds a region, and whether it is the region and nothing more.

        Leading dimensions of one element count as part of the first.
        """
        if 0 in lengths or self.nbytes == 0:
            return self._replace(size=torch.Size(lengths), nbytes=0), True
        size, begin, nbytes = list(self.size), self.begin, self.nbytes
        for i, (offset, length) in enumerate(zip(offsets, lengths)):
            each = nbytes // size[i]
            begin, nbytes = begin + offset * each, length * each
            size[i] = length
            if length != 1:
                break
        part = self._replace(size=torch.Size(size), begin=begin, nbytes=nbytes)
        return part, tuple(size) == tuple(lengths)


def find_storage(head: bytes) -> Stored | None:
    """Where the first bytes of an item put its storage. None: torch.load must read the whole item."""
    try:
        return _find_storage(head)
    except (
        _Unusual,
        pickle.UnpicklingError,
        EOFError,
        struct.error,
        AttributeError,
        IndexError,
        TypeError,
        ValueError,
    ):
        return None


class _Unusual(Exception):
    """Not a plain contiguous tensor as torch.save writes it."""


class _Tensor(NamedTuple):
    dtype: torch.dtype
    storage_nbytes: int
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def _rebuild_v2(storage: Any, offset: int, size: Any, stride: Any, grad: bool, hooks: Any) -> _Tensor:
    kind, count = storage
    dtype = kind._dtype  # kind.dtype warns of TypedStorage, which torch.save itself names
    return _Tensor(dtype, count * element_size(dtype), offset, size, stride)


def _rebuild_v3(storage: Any, offset: int, size: Any, stride: Any, grad: bool, hooks: Any, dtype: Any) -> _Tensor:
    kind, count = storage
    if kind is not torch.UntypedStorage:
        raise _Unusual
    return _Tensor(dtype, count, offset, size, stride)


class _Reader(pickle.Unpickler):
    """Knows what torch writes for one plain tensor, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_v2
        if (module, name) == ("torch._utils", "_rebuild_tensor_v3"):
            return _rebuild_v3
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch.storage", "UntypedStorage"):
            return torch.UntypedStorage
        if module == "torch":
            found = getattr(torch, name)
            if isinstance(found, torch.dtype) or (isinstance(found, type) and name.endswith("Storage")):
                return found
        raise _Unusual

    def persistent_load(self, pid: Any) -> Any:
        what, kind, key, _, count = pid
        if what != "storage" or key != "0":
            raise _Unusual
        return kind, int(count)


def _find_storage(head: bytes) -> Stored:
    name, at = _record(head, 0)
    if name != b"data.pkl":
        raise _Unusual
    stream = io.BytesIO(head)
    stream.seek(at)
    tensor = _Reader(stream).load()
    if not isinstance(tensor, _Tensor) or not isinstance(tensor.dtype, torch.dtype):
        raise _Unusual
    at = stream.tell()
    while True:
        name, at = _record(head, _after_descriptor(head, at))
        if name == b"data/0":
            break
        end = head.index(_DESCRIPTOR_MAGIC, at)
        if name == b"byteorder" and head[at:end] != b"little":
            raise _Unusual
        at = end
    element = element_size(tensor.dtype)
    size = torch.Size(tensor.size)
    nbytes = size.numel() * element
    first = tensor.offset * element
    if min(size, default=0) < 0 or first < 0 or first + nbytes > tensor.storage_nbytes or not _is_contiguous(tensor):
        raise _Unusual
    return Stored(tensor.dtype, size, at + first, nbytes, at + tensor.storage_nbytes)


def _is_contiguous(tensor: _Tensor) -> bool:
    if 0 in tensor.size:
        return True
    step = 1
    for length, stride in zip(reversed(tensor.size), reversed(tensor.stride)):
        if length != 1 and stride != step:
            return False
        step *= length
    return len(tensor.size) == len(tensor.stride)


def _record(head: bytes, at: int) -> tuple[bytes, int]:
    """The name, without its folder, of the record whose header is at `at`, and where its contents begin."""
    magic, *_, name_bytes, extra_bytes = _LOCAL.unpack_from(head, at)
    name = head[at + _LOCAL.size : at + _LOCAL.size + name_bytes]
    begin = at + _LOCAL.size + name_bytes + extra_bytes
    if magic != _LOCAL_MAGIC or begin > len(head):
        raise _Unusual
    return name.partition(b"/")[2], begin


def _after_descriptor(head: bytes, at: int) -> int:
    """Where the next record's header begins, after the checksum and sizes of one that ends at `at`."""
    if head[at : at + 4] == _DESCRIPTOR_MAGIC:
        for size in _DESCRIPTOR_SIZES:
            if head[at + size : at + size + 4] == _LOCAL_MAGIC:
                return at + size
    raise _Unusual


def buffer(address: int, nbytes: int) -> memoryview:
    """Memory as bytes to read into. Whoever holds it keeps what owns the memory."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def can_fill(target: torch.Tensor, stored: Stored) -> bool:
    """Whether the bytes of a stored tensor of that shape are the target's."""
    return (
        target.device.type == "cpu"
        and target.dtype == stored.dtype
        and target.is_contiguous()
        and not target.is_conj()
        and not target.is_neg()
        and type(target) in (torch.Tensor, torch.nn.Parameter)
    )
