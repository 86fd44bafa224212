"""Checkpoints by strings, by pathlib and by what is not a path of a bucket. Argument: bucket.

A path that is not one of a bucket must be refused, and not become a file of this machine.
"""

import pathlib
import sys

import torch
import torch.distributed.checkpoint as dcp
from dataflux_pytorch.dataflux_checkpoint import DatafluxCheckpoint
from dataflux_pytorch.lightning import DatafluxLightningCheckpoint, GCSDistributedReader, GCSDistributedWriter

bucket = sys.argv[1]
state = {"weight": torch.arange(100.0), "step": torch.tensor(7)}
forms = {
    "gs": f"gs://{bucket}/NAME",
    "gcs": f"gcs://{bucket}/NAME",
    "Path of gs": pathlib.Path(f"gs://{bucket}/NAME"),
    "Path of gcs": pathlib.Path(f"gcs://{bucket}/NAME"),
    "no scheme": f"{bucket}/NAME",
    "Path without a scheme": pathlib.Path(bucket) / "NAME",
    "file:": f"file://{pathlib.Path.cwd()}/{bucket}/NAME",
    "absolute": f"{pathlib.Path.cwd()}/NAME",
    "empty": "",
}


def named(form, name):
    return (
        pathlib.Path(str(form).replace("NAME", name)) if isinstance(form, pathlib.Path) else form.replace("NAME", name)
    )


def lightning(path):
    plugin = DatafluxLightningCheckpoint("project")
    plugin.save_checkpoint(state, path)
    loaded = plugin.load_checkpoint(path)
    assert torch.equal(loaded["weight"], state["weight"])
    plugin.remove_checkpoint(path)
    plugin.save_checkpoint(state, path, None)


def distributed(path):
    dcp.save(state, storage_writer=GCSDistributedWriter(path, "project", None))
    loaded = {"weight": torch.zeros(100), "step": torch.tensor(0)}
    dcp.load(loaded, storage_reader=GCSDistributedReader(path, "project", None))
    assert torch.equal(loaded["weight"], state["weight"]) and loaded["step"] == 7


for number, (kind, form) in enumerate(forms.items()):
    for function in (lightning, distributed):
        try:
            function(named(form, f"{function.__name__}-{number}"))
            print(function.__name__, kind, "saved and loaded")
        except BaseException as error:  # torch's CheckpointException is no Exception
            refused = isinstance(error, (ValueError, TypeError)) or type(error).__name__ == "CheckpointException"
            print(function.__name__, kind, "refused" if refused else type(error).__name__)
plain = DatafluxCheckpoint("project", bucket)
for name in ("plain.pt", "folder/plain.pt", "gs.pt"):
    with plain.writer(name) as file:
        torch.save(state, file)
    with plain.reader(name) as file:
        print(name, torch.load(file)["step"])
print(sorted(path.name for path in pathlib.Path().iterdir()))
