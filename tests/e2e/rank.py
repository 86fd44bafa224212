"""One rank of a training job that only looks: writes what it was given, batch by batch, as JSON lines.

Run by the tests in this folder, several at a time, with RANK and WORLD_SIZE set and two arguments: OUT '{"uri": ...}'.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import millrace

GATE_STEPS = 20  # with "gate", a file: so many steps for each byte in it


def look(lease: Any) -> tuple[str, str]:
    return lease.name, hashlib.sha256(lease).hexdigest()


def keep(samples: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return samples


def main() -> None:
    out, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    ds = millrace.IterableDataset(
        options["uri"],
        transform=look,
        shuffle=options.get("shuffle", True),
        seed=options.get("seed", 0),
        tail=options.get("tail", "short"),
        on_error=options.get("on_error", "raise"),
    )
    loader = millrace.DataLoader(
        ds,
        batch_size=options.get("batch", 32),
        num_workers=options.get("workers", 2),
        collate_fn=keep,
        persistent_workers=options.get("persistent", False),
        multiprocessing_context=options.get("context"),
    )
    if "state" in options:
        loader.load_state_dict(options["state"])
    with out.open("w") as lines:
        for epoch in range(options.get("epochs", 1)):
            expected = len(loader)
            for step, batch in enumerate(loader):
                print(json.dumps({"epoch": epoch, "step": step, "samples": batch}), file=lines, flush=True)
                while "gate" in options and Path(options["gate"]).stat().st_size < (step + 1) // GATE_STEPS:
                    time.sleep(0.01)
                if step + 1 == options.get("stop_after"):
                    break
            print(json.dumps({"end": epoch, "len": expected, "state": loader.state_dict()}), file=lines, flush=True)


if __name__ == "__main__":
    main()
