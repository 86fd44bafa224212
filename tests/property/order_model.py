"""The order rules as a small executable model, to hold shm/index/plan.c against: written from the design.

A position is a place in the epoch's order; the permutation turns it into an object's number in the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
ROUNDS = 8

Step = tuple[list[list[int]], int]


def mix64(x: int) -> int:
    """One step of SplitMix64."""
    x = x + GOLDEN & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def fold(words: Sequence[int]) -> int:
    """One key of many words: each is mixed by itself, then into the key so far."""
    key = words[0]
    for word in words[1:]:
        key = mix64(key ^ mix64(word))
    return key


class Permutation:
    """Of range(size): a balanced Feistel network on the smallest even number of bits (6 at least) that holds size."""

    def __init__(self, size: int, key: int | None) -> None:
        self.size = size
        self.half = max(3, ((size - 1).bit_length() + 1) // 2 if size > 1 else 0)
        self.keys = None if key is None else [mix64(key + i * GOLDEN & MASK) for i in range(ROUNDS)]

    def __call__(self, position: int) -> int:
        if self.keys is None or self.size < 2:
            return position
        mask = (1 << self.half) - 1
        while True:
            left, right = position >> self.half, position & mask
            for key in self.keys:
                left, right = right, left ^ (mix64(right ^ key) & mask)
            position = left << self.half | right
            if position < self.size:
                return position


def epoch_order(size: int, seed: int, epoch: int, digest: bytes, shuffle: bool = True) -> Permutation:
    return Permutation(size, epoch_key(b"millrace", seed, epoch, digest) if shuffle else None)


def epoch_key(kind: bytes, seed: int, epoch: int, digest: bytes) -> int:
    words = [int.from_bytes(digest[i : i + 8], "little") for i in range(0, 32, 8)]
    return fold([int.from_bytes(kind, "big"), seed, epoch, *words])


class BlockOrder:
    """Position -> object of shuffle="block": the whole order is laid out here, where the program computes a place."""

    def __init__(self, size: int, seed: int, epoch: int, digest: bytes, block: int, mix: int) -> None:
        key = epoch_key(b"in block", seed, epoch, digest)
        blocks = [range(first, min(first + block, size)) for first in range(0, size, block)]
        order = Permutation(len(blocks), key)
        shuffled = [blocks[order(place)] for place in range(len(blocks))]
        self.objects: list[int] = []
        for number, first in enumerate(range(0, len(shuffled), mix)):
            mixed = [each for run in shuffled[first : first + mix] for each in run]
            inside = Permutation(len(mixed), fold([key, number]))
            self.objects += [mixed[inside(i)] for i in range(len(mixed))]

    def __call__(self, position: int) -> int:
        return self.objects[position % len(self.objects)]


def replacements(size: int, seed: int, epoch: int, position: int) -> list[int]:
    """Up to 8 other positions to try when the one given cannot be read."""
    others = [p for p in range(size) if p != position]
    order = Permutation(len(others), fold([int.from_bytes(b"replace!", "big"), seed, epoch, position]))
    return [others[order(attempt)] for attempt in range(min(8, len(others)))]


def deal(n: int, world: int, batch: int, cursor: int = 0, tail: str = "short") -> list[Step]:
    """The rest of an epoch: for each step the positions that each rank gets, and the cursor after it."""
    steps: list[Step] = []
    at = cursor
    while at + world * batch <= n:
        cut = [at + rank * batch for rank in range(world + 1)]
        steps.append(([list(range(a, b)) for a, b in zip(cut, cut[1:])], cut[-1]))
        at = cut[-1]
    rest = list(range(at, n))
    if tail == "pad" and rest:
        wrapped = [p % n for p in range(at, at + world * batch)]
        steps.append(([wrapped[rank * batch : (rank + 1) * batch] for rank in range(world)], n))
    elif tail == "short" and len(rest) >= world:
        pending: Iterator[int] = iter(rest)
        sizes = [len(rest) // world + (1 if rank < len(rest) % world else 0) for rank in range(world)]
        steps.append(([[next(pending) for _ in range(size)] for size in sizes], n))
    return steps


def worker_steps(count: int, worker: int, workers: int) -> list[int]:
    """The numbers of the steps, of `count`, that one DataLoader worker makes."""
    return list(range(count))[worker::workers]


def single(n: int, world: int, rank: int, worker: int, workers: int) -> list[int]:
    """Without batches: every rank gets as many, so the last n mod world positions are nobody's."""
    return [p for p in range(n - n % world) if p % world == rank and p // world % workers == worker]
