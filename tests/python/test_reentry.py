"""Signal handlers that call back into an object of the extension in the middle of one of its calls."""

from __future__ import annotations

import operator
import signal
from typing import Any

import pytest

from millrace import checkpoint
from tests.python.test_checkpoint_writer import PART, Slow, slow

__all__ = ["slow"]  # a fixture


@pytest.mark.parametrize(
    "verb", ["abort", "close", "write", "_ring.seal", "_ring.abort", "_ring.close", "_ring.outcome"]
)
def test_a_signal_handler_that_uses_the_writer_in_its_write(slow: Slow, verb: str) -> None:
    """As preemption handlers do. The object is never made of a part of the bytes, and the old one stays."""
    with checkpoint.writer(slow.place / "name") as file:
        file.write(b"old")
    file = checkpoint.writer(slow.place / "name")
    call = operator.attrgetter(verb)(file)
    caught: list[BaseException] = []

    def handler(*_: Any) -> None:
        try:
            call(b"more") if verb == "write" else call()
        except BaseException as error:
            caught.append(error)
            raise

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(RuntimeError, match="a signal handler or a finaliser cannot use it"):
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            file.write(bytes(8 * PART))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert [type(error) for error in caught] == [RuntimeError]
    with pytest.raises(RuntimeError, match="a signal handler"):
        file.close()
    assert slow.place.fetch(slow.place / "name") == b"old"


def test_a_signal_handler_that_swallows_its_error(slow: Slow) -> None:
    """The write goes on, and all its bytes are saved."""
    file = checkpoint.writer(slow.place / "name")
    errors = []

    def handler(*_: Any) -> None:
        for call in (file.abort, file.close):
            try:
                call()
            except RuntimeError as error:
                errors.append(error)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
    try:
        assert file.write(bytes(3 * PART)) == 3 * PART
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert errors
    assert file.close().size == 3 * PART
    assert slow.place.fetch(slow.place / "name") == bytes(3 * PART)
