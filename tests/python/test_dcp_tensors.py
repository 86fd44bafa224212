"""millrace.dcp: tensors in the bytes of their items, without a store. The last test of test_dcp.py runs it again."""

from __future__ import annotations

import io
import pickle
import random

import pytest
import torch

from millrace.dcp._tensor import find_storage, packed
from tests.python import ranks
from tests.python.dcp_states import every_kind
from tests.python.ranks import same

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def test_a_view_that_lies_in_one_piece_is_not_copied() -> None:
    whole = torch.arange(100.0)
    piece = packed(whole[10:20].view(2, 5))
    assert piece.data_ptr() == whole[10:].data_ptr() and piece.untyped_storage().nbytes() == 40
    assert same(piece, whole[10:20].view(2, 5))
    for view in (whole[::2], whole[:0], whole[:10].expand(3, 10)):
        assert same(packed(view), view.contiguous())
    quantised = torch.quantize_per_tensor(whole, 0.5, 10, torch.quint8)[10:20]
    assert torch.equal(packed(quantised), quantised) and packed(quantised).untyped_storage().nbytes() == 10


def test_torch_save_is_read_from_the_front() -> None:
    """Everything but conjugated and strided tensors; torch.load has a look at those."""
    for name, value in every_kind().items():
        stream = io.BytesIO()
        tensor = packed(value.detach())
        torch.save(tensor, stream)
        stored = find_storage(stream.getvalue()[:1024])
        assert (stored is not None) == (tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()), name
        if stored is not None:
            assert (stored.dtype, stored.size) == (value.dtype, value.size())
            data = stream.getvalue()[stored.begin : stored.begin + stored.nbytes]
            assert data == ranks._bits(value), name


def test_garbage_in_front_is_no_tensor() -> None:
    stream = io.BytesIO()
    torch.save(torch.arange(100), stream)
    good = stream.getvalue()[:1024]
    assert find_storage(good) is not None
    chance = random.Random(1)
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        find_storage(bytes(bad[: chance.randint(0, 1024)]))  # anything but an exception, or code that is run


def test_no_code_is_run_from_an_item() -> None:
    evil = pickle.dumps(print).replace(b"print", b"input")
    assert find_storage(b"PK\x03\x04" + bytes(22) + b"\x10\0\0\0archive/data.pkl" + evil) is None
