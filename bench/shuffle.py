"""How random the orders of an epoch are, as a table in Markdown: python -m bench.shuffle [SAMPLES]

Beside millrace's own orders there is webdataset's: shards in random order, read one after another through a buffer
from which a random sample is taken. No store and no data are needed: an order is numbers.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Callable

from millrace._ring import Plan

SAMPLES = 200_000
BLOCK = 40  # of 100 KiB in 4 MiB
SHARD = 1000  # samples of 100 KiB in a shard of 100 MB
CLASSES = 1000  # names are sorted by class, all of one size: the hardest case
NEAR = 32
BATCH = 256
ASKED = 20_000
DIGEST = "5a" * 32

Order = Callable[[int], list[int]]  # of an epoch


def planned(samples: int, block: int = 0, mix: int = 0, shuffle: bool = True) -> Order:
    def order(epoch: int) -> list[int]:
        plan = Plan(samples, DIGEST, epoch=epoch, batch=samples, shuffle=shuffle, block=block, mix=mix)
        return plan.objects(0)

    return order


def buffered(samples: int, buffer: int) -> Order:
    """webdataset: shardshuffle, then .shuffle(buffer, initial=buffer)."""

    def order(epoch: int) -> list[int]:
        rng = random.Random(epoch)
        shards = list(range(0, samples, SHARD))
        rng.shuffle(shards)
        names = (sample for first in shards for sample in range(first, min(first + SHARD, samples)))
        return list(through(names, buffer, rng))

    return order


def through(names: Iterator[int], size: int, rng: random.Random) -> Iterator[int]:
    buffer: list[int] = []
    for name in names:
        buffer.append(name)
        if len(buffer) > size:
            at = rng.randrange(len(buffer))
            buffer[at], buffer[-1] = buffer[-1], buffer[at]
            yield buffer.pop()
    rng.shuffle(buffer)
    yield from buffer


def figures(order: Order, samples: int) -> tuple[float, float, float, float]:
    first, second = order(0), order(1)
    place = [0] * samples
    for position, name in enumerate(second):
        place[name] = position
    moved = sum(abs(place[name] - position) for position, name in enumerate(first)) / samples / samples
    rng = random.Random(0)
    starts = [rng.randrange(samples - NEAR) for _ in range(ASKED)]
    again = sum(abs(place[first[p]] - place[first[p + rng.randrange(1, NEAR)]]) < NEAR for p in starts) / ASKED
    run = sum(0 < abs(first[p] - first[p + 1]) < BLOCK for p in starts) / ASKED
    batches = [first[at : at + BATCH] for at in range(0, samples - BATCH + 1, BATCH)]
    classes = sum(len({name * CLASSES // samples for name in batch}) for batch in batches) / len(batches)
    return moved, again, run, classes


def main() -> None:
    samples = int(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES
    orders: list[tuple[str, Order, str]] = [("`shuffle=False`", planned(samples, shuffle=False), "")]
    orders.append(("`shuffle=True`", planned(samples), ""))
    for mix in (1, 4, 16, 64, 256):
        orders.append((f'`shuffle="block", mix_blocks={mix}`', planned(samples, BLOCK, mix), f"{mix * BLOCK:,}"))
    for buffer in (1000, 10_000):
        orders.append((f"shards in random order, a buffer of {buffer:,}", buffered(samples, buffer), f"{buffer:,}"))
    print(f"| order | samples mixed | moved | neighbours again | neighbours by name | classes in {BATCH} |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, order, mixed in orders:
        moved, again, run, classes = figures(order, samples)
        print(f"| {name} | {mixed} | {moved:.3f} | {100 * again:.2f}% | {100 * run:.2f}% | {classes:.0f} |")


if __name__ == "__main__":
    main()
