"""One rank of a job on several nodes that only looks, in step with the others.

    node.py OUT '{"uri": ..., ...}'      under torchrun, or with torch.distributed's variables set

After each step the ranks meet, as training ranks do at their all-reduce, and rank 0 saves the state; so when a node is
killed, the others fail at the next meeting, and the state on disk is that of the last step that all had. At step
`hold_at` all wait for the file OUT/go: gloo sees at once that a peer is gone when it sends, and not while it waits.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import millrace


def look(lease: Any) -> tuple[str, str]:
    return lease.name, hashlib.sha256(lease).hexdigest()


def main() -> None:
    out, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    dist.init_process_group("gloo", timeout=timedelta(seconds=150))
    rank = dist.get_rank()
    ds = millrace.IterableDataset(options["uri"], transform=look, shuffle=True, seed=options.get("seed", 0))
    loader = millrace.DataLoader(ds, batch_size=options.get("batch", 16), num_workers=0, collate_fn=list)
    saved = out / "state.json"
    if options.get("resume"):
        loader.load_state_dict(json.loads(saved.read_text()))
    with (out / f"{options['name']}-{rank}.jsonl").open("w") as lines:
        for step, batch in enumerate(loader):
            print(json.dumps({"epoch": 0, "step": step, "samples": batch}), file=lines, flush=True)
            while step == options.get("hold_at") and not (out / "go").exists():
                time.sleep(0.02)
            dist.all_reduce(torch.ones(1))
            if rank == 0:
                new = saved.with_suffix(".new")
                new.write_text(json.dumps(loader.state_dict()))
                new.rename(saved)
        end = {"end": 0, "state": loader.state_dict(), "supervisor": os.environ["MILLRACE_SOCKET"]}
        print(json.dumps(end), file=lines)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
