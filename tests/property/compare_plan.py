"""Compares shm/index/plan.c (through plan_dump) with order_model.py: python3 compare_plan.py PATH-OF-PLAN_DUMP."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # ctest runs this as a script

from tests.property import order_model as model

Case = tuple[str, Callable[[str], None]]
TAILS = ("short", "drop", "pad")


def expect(line: str, want: list[int], question: str) -> None:
    got = [int(word) for word in line.split()]
    assert got == want, f"{question}\n  program: {got}\n  model:   {want}"


def numbers(question: str, want: list[int]) -> Case:
    return question, lambda line: expect(line, want, question)


def check_plan(line: str, n: int, world: int, batch: int, cursor: int, tail: str) -> None:
    what = f"n={n} world={world} batch={batch} cursor={cursor} tail={tail}"
    left_out, *steps = line.split(";")
    got = []
    for step in steps:
        after, *shares = step.split()
        ranges = [(int(first), int(count)) for first, count in (share.split(":") for share in shares)]
        got.append(([[p % n for p in range(first, first + count)] for first, count in ranges], int(after)))
    want = model.deal(n, world, batch, cursor, tail)
    assert got == want, what
    dealt = {p for shares, _ in want for share in shares for p in share}
    assert int(left_out) == sum(p not in dealt for p in range(cursor, n)), what


def plan(n: int, world: int, batch: int, cursor: int, tail: str) -> Case:
    return f"plan {n} {world} {batch} {cursor} {tail}", lambda line: check_plan(line, n, world, batch, cursor, tail)


def plan_cases(rng: random.Random) -> Iterator[Case]:
    sizes = (0, 1, 2, 7, 8, 63, 64, 100, 1500)
    for n, world, batch, tail in itertools.product(sizes, (1, 2, 3, 8), (1, 3, 8, 32), TAILS):
        full = model.deal(n, world, batch)
        for stop in sorted({0, 1, len(full) // 2, len(full)}):
            cursor = full[stop - 1][1] if 0 < stop <= len(full) else 0
            for resumed in {world, rng.choice((1, 2, 3, 8))}:
                yield plan(n, resumed, batch, cursor, tail)
    for tail in TAILS:
        for world in (1, 2, 3):
            yield plan(6296, world, 32, 0, tail)
            yield plan(6296, world, 32, 2 * 32 * 17, tail)
    for _ in range(4000):
        n = rng.randrange(200)
        yield plan(n, rng.randint(1, 12), rng.randint(1, 40), rng.randint(0, n), rng.choice(TAILS))


def order_cases(rng: random.Random) -> Iterator[Case]:
    for k in range(400):
        size = k if k < 70 else rng.choice((100, 1000, 6296, 10**7, 2**32, 2**48 - 1, 2**48)) - rng.randint(0, 1)
        seed, epoch, digest = rng.getrandbits(64), rng.randrange(50), rng.randbytes(32)
        shuffle = k % 10 != 9
        positions = list(range(size)) if size < 70 else [rng.randrange(size) for _ in range(20)]
        order = model.epoch_order(size, seed, epoch, digest, shuffle)
        listed = " ".join(map(str, positions))
        yield numbers(f"perm {size} {seed} {epoch} {digest.hex()} {int(shuffle)} {listed}", list(map(order, positions)))
    for k in range(400):
        size = k % 30 + 1 if k < 200 else rng.randint(2, 2000)
        seed, epoch, position = rng.getrandbits(64), rng.randrange(50), rng.randrange(size)
        want = model.replacements(size, seed, epoch, position)
        yield numbers(f"replace {size} {seed} {epoch} {position}", want)


def block_cases(rng: random.Random) -> Iterator[Case]:
    sizes = [*range(40), *(rng.randint(40, 400) for _ in range(12)), 6296]
    for size, block, mix in itertools.product(sizes, (1, 2, 5, 40, 1000), (1, 3, 16)):
        seed, epoch, digest = rng.getrandbits(64), rng.randrange(50), rng.randbytes(32)
        order = model.BlockOrder(size, seed, epoch, digest, block, mix)
        positions = list(range(size)) if size < 400 else [rng.randrange(2 * size) for _ in range(50)]
        listed = " ".join(map(str, positions))
        question = f"blocks {size} {seed} {epoch} {digest.hex()} {block} {mix} {listed}"
        yield numbers(question, list(map(order, positions)))


def worker_cases(rng: random.Random) -> Iterator[Case]:
    for _ in range(400):
        n, world, batch, workers = rng.randrange(100), rng.randint(1, 5), rng.randint(1, 8), rng.randint(1, 6)
        rank, worker = rng.randrange(world), rng.randrange(workers)
        mine = model.single(n, world, rank, worker, workers)
        yield numbers(f"single {n} {world} {rank} {worker} {workers}", mine)
        steps = model.worker_steps(len(model.deal(n, 1, batch)), worker, workers)
        yield numbers(f"worker {n} {batch} {worker} {workers}", steps)


def main() -> None:
    rng = random.Random(20)
    cases = [*plan_cases(rng), *order_cases(rng), *block_cases(rng), *worker_cases(rng)]
    questions = "".join(question + "\n" for question, _ in cases)
    run = subprocess.run([sys.argv[1]], input=questions, stdout=subprocess.PIPE, check=True, text=True, timeout=60)
    answers = run.stdout.split("\n")
    assert len(answers) == len(cases) + 1, f"{len(answers) - 1} answers to {len(cases)} questions"
    for (_, check), answer in zip(cases, answers):
        check(answer)
    print(f"{len(cases)} cases agree with the model")


if __name__ == "__main__":
    main()
