"""The Python side of a torture run: reads an epoch, writes a checkpoint, reads it back.

python trainer.py DATA-URI CHECKPOINT-URI BYTES

An error is an exception, whose traceback is on standard error; wrong bytes end with status 4.
"""

from __future__ import annotations

import sys

import millrace
import millrace.checkpoint


def main(data: str, target: str, size: int) -> None:
    dataset = millrace.IterableDataset(data, transform=lambda lease: (lease.name, bytes(lease)))
    seen = dict(dataset)
    wanted = [bytes([i + 1]) * ((i + 1) * 700) for i in range(len(seen))]
    if [seen[name] for name in sorted(seen)] != wanted or len(seen) != 6:
        print("WRONG: samples", file=sys.stderr)
        sys.exit(4)
    body = b"".join(bytes([i & 255]) * 1000 for i in range(size // 1000 + 1))[:size]
    with millrace.checkpoint.writer(target) as file:
        for at in range(0, size, 100_000):
            file.write(body[at : at + 100_000])
    with millrace.checkpoint.reader(target) as file:
        if file.read() != body:
            print("WRONG: checkpoint", file=sys.stderr)
            sys.exit(4)
    print("whole")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
