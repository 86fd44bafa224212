"""Lease: the bytes stay what they are for as long as anything made from the Lease lives, and return after that."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import millrace
from tests.python.conftest import Folder

BATCH = 8


@pytest.fixture
def leases(socket: str, hundred: Folder) -> Iterator[list[Any]]:
    """Some leases of a lane that stays open."""
    batches = iter(millrace.IterableDataset(hundred.uri).batches(BATCH))
    found = next(batches)
    yield found
    found.clear()


def expected(hundred: Folder, lease: Any) -> bytes:
    return hundred.contents[lease.name]


def test_buffer_is_read_only_and_right(leases: list[Any], hundred: Folder) -> None:
    assert [lease.name for lease in leases] == hundred.names[:BATCH]
    for number, lease in enumerate(leases):
        data = expected(hundred, lease)
        view = memoryview(lease)
        assert view.readonly and view.nbytes == lease.size == len(lease) == len(data)
        assert view == data
        assert bytes(lease) == data
        assert lease.index == lease.position == number
        assert lease.crc32c and lease.generation
    with pytest.raises(TypeError, match="read-write"):
        io.BytesIO(b"x").readinto(leases[0])


def test_repr_names_the_object(leases: list[Any]) -> None:
    assert leases[0].name in repr(leases[0])


def test_numpy_keeps_the_bytes(leases: list[Any], hundred: Folder) -> None:
    want = expected(hundred, leases[0])
    array = np.frombuffer(leases[0], dtype=np.uint8)
    leases.clear()
    gc.collect()
    assert array.tobytes() == want
    assert not array.flags.writeable


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_torch_frombuffer_keeps_the_bytes_for_a_whole_epoch(socket: str, hundred: Folder) -> None:
    ds = millrace.IterableDataset(hundred.uri, window=16)
    kept = None
    for batch in ds.batches(4):
        if kept is None:
            want = hundred.contents[batch[0].name]
            kept = torch.frombuffer(batch[0], dtype=torch.uint8)
    del batch
    for again in ds.batches(4):  # and the next one, whose lane is another
        assert len(again) == 4
    assert kept is not None and kept.numpy().tobytes() == want


# Before 2.1 numpy spoke the older DLPack, which knows nothing of read-only memory.
NUMPY_HAS_DLPACK_1 = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


def test_dlpack(leases: list[Any], hundred: Folder) -> None:
    lease = leases[0]
    want = expected(hundred, lease)
    assert lease.__dlpack_device__() == (1, 0)
    if not NUMPY_HAS_DLPACK_1:
        with pytest.raises(BufferError, match=r"DLPack before version 1\.0"):
            np.from_dlpack(lease)
        return
    array = np.from_dlpack(lease)
    assert not array.flags.writeable and array.tobytes() == want
    gone = weakref.ref(lease)
    del lease
    leases.clear()
    gc.collect()
    assert gone() is None
    assert array.tobytes() == want  # the Lease is gone, the hold is not


def test_dlpack_of_before_1_0_needs_a_copy(leases: list[Any], hundred: Folder) -> None:
    with pytest.raises(BufferError, match="writable=True"):
        leases[0].__dlpack__()
    with pytest.raises(BufferError, match="CPU"):
        leases[0].__dlpack__(max_version=(1, 0), dl_device=(2, 0))
    with pytest.raises(BufferError, match="stream"):
        leases[0].__dlpack__(max_version=(1, 0), stream=1)
    with pytest.raises(TypeError):
        leases[0].__dlpack__(max_version=1)
    tensor = torch.utils.dlpack.from_dlpack(leases[0].__dlpack__(copy=True))
    tensor += 1
    assert bytes(leases[0]) == expected(hundred, leases[0])


def test_a_capsule_that_nobody_takes_gives_its_hold_back(leases: list[Any]) -> None:
    for _ in range(3):
        leases[0].__dlpack__(max_version=(1, 0))
        leases[0].__dlpack__(copy=True)


def test_release(leases: list[Any], hundred: Folder) -> None:
    lease, name, want = leases[0], leases[0].name, expected(hundred, leases[0])
    array = np.frombuffer(lease, dtype=np.uint8)
    lease.release()
    lease.release()
    for use in (memoryview, bytes, pickle.dumps):
        with pytest.raises(ValueError, match="released"):
            use(lease)
    with pytest.raises(ValueError, match="released"):
        lease.copy()
    with pytest.raises(ValueError, match="released"):
        lease.__dlpack__(max_version=(1, 0))
    assert lease.name == name and lease.size == len(want) and "released" in repr(lease)
    assert array.tobytes() == want  # was exported before: waits for the Lease to go
    leases[1].release()  # was not: gone at once
    with pytest.raises(ValueError, match="released"):
        memoryview(leases[1])


def test_a_cycle_is_collected(leases: list[Any]) -> None:
    lease = leases.pop()
    cycle: dict[str, Any] = {"lease": lease}
    cycle["self"] = cycle
    gone = weakref.ref(lease)
    del lease, cycle
    gc.collect()
    assert gone() is None


def test_a_pickled_one_has_bytes_of_its_own(leases: list[Any], hundred: Folder) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        other = pickle.loads(pickle.dumps(leases[0], protocol))
        again = copy.deepcopy(other)
        for one in (other, again):
            assert type(one) is millrace.Lease and repr(one) == repr(leases[0])
            assert bytes(one) == bytes(np.from_dlpack(one, copy=True)) == expected(hundred, leases[0])
            for name in ("name", "url", "size", "generation", "crc32c", "index", "position", "encoding"):
                assert getattr(one, name) == getattr(leases[0], name)
        other.release()
        with pytest.raises(ValueError, match="released"):
            bytes(other)
        with pytest.raises(ValueError, match="released"):
            pickle.dumps(other)


def test_damaged_states_are_refused(leases: list[Any]) -> None:
    make, (data, state) = leases[0].__reduce__()
    for at in range(len(state)):
        with pytest.raises((TypeError, OverflowError)):
            make(data, (*state[:at], *state[at + 1 :]))
    with pytest.raises(TypeError):
        make(data, (7, *state[1:]))
    with pytest.raises(TypeError):
        make(data, list(state))


def test_copies_are_items(leases: list[Any], hundred: Folder) -> None:
    for item in (leases[0].copy(), pickle.loads(pickle.dumps(leases[0].copy()))):
        assert type(item) is millrace.Item
        assert item == expected(hundred, leases[0])
        assert (item.name, item.size) == (leases[0].name, leases[0].size)
    assert leases[0].name in repr(leases[0].copy())


def test_writable_data_set_gives_private_bytes(socket: str, hundred: Folder) -> None:
    for batch in millrace.IterableDataset(hundred.uri, writable=True).batches(BATCH):
        for lease in batch:
            view = memoryview(lease)
            assert not view.readonly
            view[0] ^= 0xFF
            assert bytes(lease)[1:] == hundred.contents[lease.name][1:]
            torch.utils.dlpack.from_dlpack(lease.__dlpack__())  # nothing to say that the old form cannot
    again = next(iter(millrace.IterableDataset(hundred.uri).batches(BATCH)))
    assert all(bytes(lease) == hundred.contents[lease.name] for lease in again)


def test_dropped_by_another_thread(leases: list[Any]) -> None:
    box = [np.from_dlpack(leases[0]) if NUMPY_HAS_DLPACK_1 else np.frombuffer(leases[0], dtype=np.uint8)]
    leases.clear()
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert not box


def test_a_forked_child_cannot_use_and_does_not_free(leases: list[Any], hundred: Folder) -> None:
    copy = leases[1].copy()
    pid = os.fork()
    if pid == 0:
        try:
            memoryview(leases[0])
            status = 1
        except ValueError as error:
            status = 0 if "fork" in str(error) and copy == hundred.contents[copy.name] else 2
        leases.clear()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [bytes(lease) for lease in leases] == [expected(hundred, lease) for lease in leases]


WRITER = """
    import sys
    import torch, millrace
    lease = next(iter(millrace.IterableDataset(sys.argv[1]).batches(1)))[0]
    print(lease.name, flush=True)
    torch.frombuffer(lease, dtype=torch.uint8)[0] = 7
"""


@pytest.mark.parametrize("option", [[], ["-X", "faulthandler"]])
def test_a_write_names_the_object_before_it_kills(socket: str, hundred: Folder, option: list[str]) -> None:
    command = [sys.executable, *option, "-c", textwrap.dedent(WRITER), hundred.uri]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGSEGV
    assert f'read-only bytes of object "{done.stdout.strip()}"' in done.stderr
    assert "writable=True" in done.stderr
    assert ("Fatal Python error" in done.stderr) == bool(option)  # whose turn it was before


def test_collate_gives_lists(leases: list[Any]) -> None:
    from torch.utils.data import default_collate

    millrace.DataLoader  # noqa: B018 (registers)
    from millrace import _torch

    _torch.register_collate()
    assert default_collate(leases) == leases
    items = [lease.copy() for lease in leases]
    assert default_collate(items) == items
    assert default_collate([(lease, 1) for lease in leases])[0] == leases


def test_a_batch_that_the_loop_has_dropped_is_not_held(socket: str, hundred: Folder) -> None:
    """While the next one is fetched: it would be half of a small window."""
    given: list[weakref.ref[Any]] = []
    held = []

    def transform(lease: Any) -> Any:
        held.append(sum(each() is not None for each in given))
        return lease

    for batch in millrace.IterableDataset(hundred.uri, transform=transform).batches(8):
        given.extend(map(weakref.ref, batch))
        del batch
    assert len(held) == 100 and max(held) == 0
