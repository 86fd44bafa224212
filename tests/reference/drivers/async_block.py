"""The README's block on asynchronous saves, with gloo in place of nccl: python async_block.py README.md URI

It names a path, a state and a number of epochs that the reader has, and a process group that is there already.
"""

from __future__ import annotations

import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

BLOCKS = runpy.run_path(str(Path(__file__).with_name("blocks.py")))["blocks"]
text = next(block for block in BLOCKS(Path(sys.argv[1])) if "async_save" in block)
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    state = {"weight": torch.arange(1000.0), "step": torch.tensor(3)}
    names: dict[str, Any] = {
        "path": sys.argv[2],
        "project": "project",
        "storage_client": None,
        "state_dict": state,
        "num_epochs": 2,
    }
    exec(compile(text.replace("nccl", "gloo"), "README", "exec"), names)
    names["checkpoint_future"].result()
    dist.destroy_process_group()
print("saved")
