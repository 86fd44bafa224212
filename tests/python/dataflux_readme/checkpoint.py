"""Saves a model into a bucket and loads it again. Arguments: project, bucket, prefix."""

import sys

import torch
from dataflux_pytorch import dataflux_checkpoint

project, bucket, prefix = sys.argv[1:]
ckpt = dataflux_checkpoint.DatafluxCheckpoint(project_name=project, bucket_name=bucket)
path = "checkpoints/epoch0.ckpt"
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))
with ckpt.writer(path) as writer:
    torch.save(model.state_dict(), writer)
with ckpt.reader(path) as reader:
    read_state_dict = torch.load(reader)
assert all(torch.equal(read_state_dict[key], value) for key, value in model.state_dict().items())
model.load_state_dict(read_state_dict)
print("restored")
