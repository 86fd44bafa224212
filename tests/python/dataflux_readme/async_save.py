"""Saves asynchronously by torch.distributed.checkpoint, one save at a time. Arguments: project, bucket, prefix."""

import sys
import tempfile

import torch
import torch.distributed as dist
from dataflux_pytorch.lightning.gcs_filesystem import GCSDistributedReader, GCSDistributedWriter
from google.cloud import storage
from torch.distributed.checkpoint import async_save, load

project, bucket, prefix = sys.argv[1:]
path = f"gcs://{bucket}/distributed/checkpoint"
storage_client = storage.Client(project=project)
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    checkpoint_group = dist.new_group(list(range(dist.get_world_size())), backend="gloo")
    writer = GCSDistributedWriter(path, project, storage_client)
    state_dict = {"weight": torch.zeros(1000), "epoch": torch.zeros(1)}
    checkpoint_future = None
    for epoch in range(3):
        state_dict["weight"] += 1
        state_dict["epoch"][0] = epoch
        if checkpoint_future is not None:
            checkpoint_future.result()
        checkpoint_future = async_save(
            state_dict, checkpoint_id=path, storage_writer=writer, process_group=checkpoint_group
        )
    checkpoint_future.result()
    found = {"weight": torch.empty(1000), "epoch": torch.empty(1)}
    load(found, checkpoint_id=path, storage_reader=GCSDistributedReader(path, project, storage_client))
    assert torch.equal(found["weight"], state_dict["weight"])
    print("restored epoch", int(found["epoch"]))
    dist.destroy_process_group()
