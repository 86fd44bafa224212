"""A short chaos; and that its judges would see what they look for."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from tests.chaos.plan import Place, Training
from tests.chaos.run import chaos, report
from tests.chaos.scene import STORES
from tests.chaos.wire import Exchange, Half, Wire


@pytest.mark.nightly
@pytest.mark.random
@pytest.mark.parametrize("store", STORES)
def test_a_short_chaos(tmp_path: Path, store: str) -> None:
    small = {"jobs": 1, "objects": 120, "epochs": 2, "workers": 1}
    scene = chaos(tmp_path, seed=5, deaths=40, **small, strikes_s=6, tidy=False, store=store)
    assert scene.wrong == [], report(scene, 5, 0)
    assert scene.deaths >= 40
    assert scene.counts["samples"] > 0


def a_training() -> Training:
    training = Training({f"{i:02}": f"sum-{i}" for i in range(10)}, seed=1, batch=2, epochs=1, digest="00" * 32)
    training.resume(Place())
    return training


def test_other_samples_than_planned_are_seen() -> None:
    training = a_training()
    order = training.order(0)
    right = [[name, training.digests[name]] for name in order[:2]]
    assert training.check(0, [0, 1], right) is None
    assert training.check(0, [0, 1], right[::-1]) is not None
    assert training.check(0, [0, 1], [right[0], [right[1][0], "other bytes"]]) is not None
    assert training.wrong == 2


def test_lost_and_repeated_samples_are_seen() -> None:
    for change, lost, repeated in ((slice(3, 5), 2, 0), (slice(0, 0), 0, 1)):
        training = a_training()
        given = list(training.order(0))
        if lost:
            del given[change]
        else:
            given.insert(5, given[4])
        training.give(0, given)
        assert training.end_epoch(0, world=2) is not None
        assert (training.lost, training.repeated) == (lost, repeated)


def test_a_resume_takes_back_what_came_after_the_checkpoint() -> None:
    training = a_training()
    order = training.order(0)
    training.give(0, order[:6])
    training.resume(Place(0, 4))
    training.give(0, order[4:])
    assert training.end_epoch(0, world=2) is None


REQUEST = b"GET /storage/v1/b/b/o/o?alt=media HTTP/1.1\r\nHost: x\r\n\r\n"
LISTING = b"GET /storage/v1/b/b/o?prefix=x HTTP/1.1\r\nHost: x\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789"


OF_S3 = b"GET /b/o HTTP/1.1\r\nHost: x\r\n\r\n"
RANGE = b"GET /b/o HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\n\r\n"


@pytest.mark.parametrize(("request_bytes", "flipped"), [(REQUEST, 1), (LISTING, 0), (OF_S3, 1), (RANGE, 0)])
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_the_wire_flips_bits_of_objects_alone(request_bytes: bytes, flipped: int, piece: int) -> None:
    wire = Wire(0, seed=1)
    wire.change(b'{"flip": 1}')
    requests: deque[Exchange] = deque()
    up, down = Half(), Half()
    sent = b"".join(
        wire.take(up, request_bytes[i : i + piece], requests, True)[0] for i in range(0, len(request_bytes), piece)
    )
    came = b"".join(wire.take(down, ANSWER[i : i + piece], requests, False)[0] for i in range(0, len(ANSWER), piece))
    assert sent == request_bytes
    assert len(came) == len(ANSWER)
    assert came[:-10] == ANSWER[:-10]
    assert sum(a != b for a, b in zip(came, ANSWER)) == flipped
    assert wire.counts["flip"] == flipped


def test_the_wire_cuts_at_any_byte() -> None:
    wire = Wire(0, seed=1)
    wire.change(b'{"cut": 1}')
    requests: deque[Exchange] = deque([Exchange()])
    out, what = wire.take(Half(), ANSWER, requests, False)
    assert what == "cut"
    assert ANSWER.startswith(bytes(out)) and len(out) < len(ANSWER)
