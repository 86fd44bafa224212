"""What the tests give to other processes, which import it: transforms and collate functions."""

from __future__ import annotations

import io
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import millrace


def pair(lease: millrace.Lease) -> tuple[str, bytes]:
    return lease.name, bytes(lease)


def name_of(lease: millrace.Lease) -> str:
    return lease.name


def keep(samples: list[Any]) -> list[Any]:
    return samples


def refuse_a_fifth(lease: millrace.Lease) -> str:
    """Cannot use objects whose number (their first four bytes) is a multiple of 5."""
    if int.from_bytes(bytes(lease)[:4], "little") % 5 == 0:
        raise RuntimeError("a fifth")
    return lease.name


def refuse(names: set[str], lease: millrace.Lease) -> str:
    if lease.name in names:
        raise RuntimeError("one of those")
    return lease.name


def refuse_all(lease: millrace.Lease) -> str:
    raise RuntimeError("none will do")


def model_order(dataset: Any, seed: int, epoch: int, shuffle: bool = True) -> list[str]:
    """The names of an epoch in order, by the tests' own model."""
    from tests.property.order_model import epoch_order

    names = [name for name, _ in dataset.objects]
    order = epoch_order(len(names), seed, epoch, bytes.fromhex(dataset.digest), shuffle)
    return [names[order(p)] for p in range(len(names))]


def nested(samples: list[Any]) -> Any:
    names, data = zip(*samples)
    return names, {"data": list(data)}


@contextmanager
def in_its_call(probe: Callable[[], Any], act: Callable[[], Any]) -> Iterator[None]:
    """A signal handler calls act() once, in the middle of a call that the body makes of an object of the extension,
    however late that call begins. probe(), a call of the same object, does nothing outside of it, and gets RuntimeError
    within."""

    def handler(*_: Any) -> None:
        try:
            probe()
        except RuntimeError:
            act()
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.1)  # not yet: again

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def reads_alike(remote: Any, local: Any, size: int, block: int, seed: int) -> None:
    """60 draws of what a file can be asked, and then all of it, give the same from both."""
    rng = random.Random(seed)
    for _ in range(60):
        what = rng.randrange(9)
        count = rng.choice([0, 1, 7, 4096, 100_000, block, block + 1, 3 * block + 17])
        if what < 3:
            near = rng.choice([0, block, 2 * block, size - 1, size]) + rng.randrange(-3, 4)
            offset = max(rng.choice([near, rng.randrange(size + 10)]), 0)
            assert remote.seek(offset) == local.seek(offset) == remote.tell()
        elif what == 3:
            back = rng.randrange(size)
            assert remote.seek(-back, io.SEEK_END) == local.seek(-back, io.SEEK_END)
        elif what == 4 and local.tell() > 100:
            assert remote.seek(-99, io.SEEK_CUR) == local.seek(-99, io.SEEK_CUR)
        elif what == 5:
            here, there = bytearray(count), bytearray(count)
            assert remote.readinto(there) == local.readinto(here)
            assert there == here
        elif what == 6:
            assert remote.readline() == local.readline()
        else:
            assert remote.read(count) == local.read(count)
    remote.seek(0)
    local.seek(0)
    assert remote.read() == local.read()
    assert remote.read() == b""
