"""Reads a whole bucket and prints {"objects": {name: sha256}, "skipped": N} as JSON. compose_reader.py URI [EPOCHS]

Run by test_compose.py and compose_kills.py with MILLRACE_SOCKET set. Prints "begun" on standard error after the first
batch.
"""

from __future__ import annotations

import hashlib
import json
import sys

import millrace


def main() -> None:
    uri, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    ds = millrace.IterableDataset(uri, shuffle=True, seed=3, on_error="skip")
    objects: dict[str, str] = {}
    taken = 0
    for epoch in range(epochs):
        ds.set_epoch(epoch)
        for batch in ds.batches(32):
            for lease in batch:
                objects[lease.name] = hashlib.sha256(lease).hexdigest()
                taken += 1
            if taken and taken <= 32:
                print("begun", file=sys.stderr, flush=True)
    json.dump({"objects": objects, "taken": taken}, sys.stdout)


if __name__ == "__main__":
    main()
