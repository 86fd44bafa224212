"""A sample of `make torture`: one call of each kind fails in each program, the Nth by a fixed stride.

And all calls of the places where the whole of it found a fault.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.torture.scenes import SCENES, Place, Scene, a_place, attempt

KINDS = ["malloc", "mmap", "open", "socket", "ftruncate", "epoll", "eventfd", "write", "read", "stat", "dup"]
BY_NAME = {scene.name: scene for scene in SCENES}
SAMPLE = ["supervisor", "trainer", "list", "fetch gs", "write", "write gs new", "cat", "cp down", "cp up", "doctor"]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with a_place() as place:
        yield place


def fail(scene: Scene, place: Place, kind: str, n: int, ever: bool = False) -> bool:
    """Whether the call came."""
    result = attempt(scene, place, kind, n, ever)
    assert not result.problem, f"{kind} {n} at {result.hit}: {result.problem}\n{result.ended.err}"
    return result.hit is not None


@pytest.mark.parametrize("name", SAMPLE)
def test_a_call_of_each_kind_fails(name: str, place: Place) -> None:
    first = 1 + SAMPLE.index(name) % 3
    failed = [
        fail(BY_NAME[name], place, kind, n) for kind in KINDS for n in (first, first + 23)[: 1 + (kind == KINDS[0])]
    ]
    assert sum(failed) >= 4


def test_calls_of_the_extension_fail(place: Place) -> None:
    """malloc 5: the private supervisor stayed, without a client."""
    calls = [("malloc-near", 300), ("malloc", 5), ("mmap", 2), ("socket", 1)]
    assert sum(fail(BY_NAME["python"], place, kind, n) for kind, n in calls) >= 3


@pytest.mark.parametrize(
    ("name", "kind", "calls"),
    [
        ("check", "malloc", range(1, 9)),  # terminate called after throwing std::bad_alloc
        ("supervisor", "malloc", range(1, 4)),  # status 1 without a word
        ("supervisor", "read", range(32, 36)),  # a worker's socket was lost, and nobody waited for it any less
        ("list", "stat", range(4, 11)),  # 5 objects of 6, "left out: 1 no regular files"
        ("fetch gs", "epoll", range(9, 14)),  # libcurl crashed after a callback that failed
        ("index list", "malloc", range(72, 78)),  # "the index is saved", without a key of its header
        ("list shards", "malloc", range(84, 92)),  # the rest of a list of names was left out without an error
        ("clean", "malloc-all", range(85, 90)),  # glibc's fts_open wrote to NULL
        ("rm", "epoll", range(4, 8)),  # an answer came after its question's function had returned
    ],
)
def test_all_calls_fail_where_a_fault_was(name: str, kind: str, calls: range, place: Place) -> None:
    assert sum(fail(BY_NAME[name], place, kind, n) for n in calls) == len(calls)
