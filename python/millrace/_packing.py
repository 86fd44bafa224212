"""A batch as a message: its tensors, arrays and bytes in the memory of a slot, the rest as a pickle.

The worker pickles the batch with a pickler that is asked for every object in it, however deep it lies: what has bytes
is placed in the slot, and a number stands for it in the pickle. The loop's side puts views in place of the numbers:
tensors, arrays and Leases over the slot's memory, which keep it as long as they live; bytes and Items, which cannot be
views, are copied out.
"""

from __future__ import annotations

import io
import pickle
import sys
from multiprocessing.reduction import ForkingPickler
from typing import Any, cast

import torch

from ._item import Item
from ._ring import Batch, Lease

MIN_SLOT_BYTES = 4096  # shorter bytes are left in the pickle
TENSOR, ARRAY, LEASE, BYTES, ITEM = range(5)
Row = tuple[Any, ...]  # kind, offset, size, and what the kind needs

_KINDS: set[type] = {torch.Tensor, Lease, Item, bytes}

# What is copied number by number. Types of less than a byte are not among them.
_DTYPES = {
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16"),
        *("float32", "float64", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    if hasattr(torch, name)
}
_shared: dict[type, bool] = {}  # types that torch sends by descriptors of its own


def _is_shared(kind: type) -> bool:
    if kind not in _shared:
        _shared[kind] = issubclass(kind, (torch.Tensor, torch.UntypedStorage, torch.TypedStorage))
    return _shared[kind]


def tensor_at(batch: Batch, at: int, size: int, dtype: Any, shape: Any, stride: Any = None) -> torch.Tensor:
    """A tensor over `size` bytes of the batch's memory."""
    if size == 0:
        return torch.empty(shape, dtype=dtype, device="cpu")
    flat = torch.utils.dlpack.from_dlpack(batch.capsule(at, size))
    if dtype is not torch.uint8:
        flat = flat.view(dtype)
    return flat.view(shape) if stride is None else flat.as_strided(shape, stride)


def is_plain(one: torch.Tensor) -> bool:
    """Whether nothing is lost when its numbers are copied: on the CPU, dense numbers, no gradient."""
    return (
        type(one) is torch.Tensor
        and one.layout is torch.strided
        and not one.is_nested
        and one.dtype in _DTYPES
        and one.device.type == "cpu"
        and not (one.requires_grad or one.is_quantized or one.is_conj() or one.is_neg())
    )


def _strides(one: torch.Tensor) -> tuple[int, ...] | None:
    """Of one whose elements fill their memory in another order (channels last, transposed); else None."""
    expected = 1
    for stride, extent in sorted(zip(one.stride(), one.shape)):
        if extent != 1:
            if stride != expected:
                return None
            expected *= extent
    return tuple(one.stride())


class Packer(ForkingPickler):
    """Pickles one batch into `file`; `rows` says what was placed. What found no room is counted in `beside`."""

    def __init__(self, file: io.BytesIO, batch: Batch) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._batch = batch
        self.rows: list[Row] = []
        self.beside = 0
        # Whether the loop's side may open it later: bytes are copied out then, and nothing of it is at this worker.
        self.may_wait = True
        self._seen: dict[int, tuple[int | None, Any]] = {}  # id -> row, and the object, so that the id stays its own
        numpy = sys.modules.get("numpy")
        self._array: Any = getattr(numpy, "ndarray", None)

    def persistent_id(self, one: Any) -> int | None:
        kind = type(one)
        if kind not in _KINDS and kind is not self._array:
            if _is_shared(kind):
                self.may_wait = False
            return None
        if id(one) in self._seen:
            return self._seen[id(one)][0]
        row = self._place(kind, one)
        number = None
        if row is None and kind is torch.Tensor:
            self.may_wait = False
        if row is not None:
            number = len(self.rows)
            self.rows.append(row)
        self._seen[id(one)] = number, one
        return number

    def _place(self, kind: type, one: Any) -> Row | None:
        if kind is torch.Tensor:
            return self._place_tensor(one) if is_plain(one) else None
        if kind is self._array:
            return self._place_array(one)
        size = len(one)
        if kind is bytes and size < MIN_SLOT_BYTES:
            return None
        at = self._counted(self._batch.put(one))
        if at < 0:
            return None
        if kind is Lease:
            return LEASE, at, size, one._state()
        return (BYTES, at, size) if kind is bytes else (ITEM, at, size, one.name, one.encoding)

    def _counted(self, at: int) -> int:
        self.beside += at < 0
        return at

    def _place_tensor(self, one: torch.Tensor) -> Row | None:
        dtype, shape, size = one.dtype, tuple(one.shape), one.numel() * one.element_size()
        stride = None
        if not one.is_contiguous():
            stride = _strides(one)
            if stride is None and size > one.untyped_storage().nbytes():
                return None  # expanded: as torch sends it, it stays small
        elif size:
            at = self._batch.offset_of(one.data_ptr(), size)
            if at >= 0:
                return TENSOR, at, size, dtype, shape, None  # it was collated there
        at = self._counted(self._batch.alloc(size))
        if at < 0:
            return None
        if size:
            tensor_at(self._batch, at, size, dtype, shape, stride).copy_(one)
        return TENSOR, at, size, dtype, shape, stride

    def _place_array(self, one: Any) -> Row | None:
        dtype = one.dtype
        if dtype.hasobject:
            return None
        order = "F" if one.flags.f_contiguous and not one.flags.c_contiguous else "C"
        if not one.flags.forc and one.nbytes > _base_bytes(one):
            return None
        at = self._counted(self._batch.alloc(one.nbytes))
        if at < 0:
            return None
        _array_at(self._batch, at, dtype, one.shape, order)[...] = one
        return ARRAY, at, one.nbytes, dtype, one.shape, order


def _base_bytes(array: Any) -> int:
    """Bytes that the array's memory has, as far as is known: less than its elements for one that was broadcast."""
    base = array.base
    return cast(int, getattr(base, "nbytes", array.nbytes))


def _array_at(batch: Batch, at: int, dtype: Any, shape: tuple[int, ...], order: str) -> Any:
    import numpy

    return numpy.ndarray(shape, dtype, buffer=cast(Any, batch), offset=at, order=cast(Any, order))


class Unpacker(pickle.Unpickler):
    def __init__(self, payload: bytes, rows: list[Row], batch: Batch) -> None:
        super().__init__(io.BytesIO(payload))
        self._rows, self._batch = rows, batch
        self._made: list[Any] = [None] * len(rows)

    def persistent_load(self, number: int) -> Any:
        """Each object once, however often the batch names it."""
        if self._made[number] is None:
            self._made[number] = self._make(*self._rows[number])
        return self._made[number]

    def _make(self, kind: int, at: int, size: int, *more: Any) -> Any:
        if kind == TENSOR:
            return tensor_at(self._batch, at, size, *more)
        if kind == ARRAY:
            return _array_at(self._batch, at, *more)
        if kind == LEASE:
            return self._batch.lease(at, size, *more)
        with memoryview(cast(Any, self._batch))[at : at + size] as data:
            return bytes(data) if kind == BYTES else Item(data, *more)
