"""Signal handlers that call back into an object of the extension in the middle of one of its calls."""

from __future__ import annotations

import operator

import pytest

from millrace import checkpoint
from tests.python.checkpoint_places import PART
from tests.python.helpers import in_its_call
from tests.python.test_checkpoint_deaths import Slow, slow

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

    def act() -> None:
        try:
            call(b"more") if verb == "write" else call()
        except BaseException as error:
            caught.append(error)
            raise

    refused = pytest.raises(RuntimeError, match="a signal handler or a finaliser cannot use it")
    with refused, in_its_call(lambda: file.write(b""), act):
        file.write(bytes(8 * PART))
    assert [type(error) for error in caught] == [RuntimeError]
    with pytest.raises(RuntimeError, match="a signal handler"):
        file.close()
    assert slow.place.fetch(slow.place / "name") == b"old"


def test_a_signal_handler_that_swallows_its_error(slow: Slow) -> None:
    """The write goes on, and all its bytes are saved."""
    file = checkpoint.writer(slow.place / "name")
    errors = []

    def act() -> None:
        for call in (file.abort, file.close):
            try:
                call()
            except RuntimeError as error:
                errors.append(error)

    with in_its_call(lambda: file.write(b""), act):
        assert file.write(bytes(3 * PART)) == 3 * PART
    assert len(errors) == 2
    assert file.close().size == 3 * PART
    assert slow.place.fetch(slow.place / "name") == bytes(3 * PART)
