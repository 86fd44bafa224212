"""What the tests give to other processes, which import it: transforms and collate functions."""

from __future__ import annotations

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
