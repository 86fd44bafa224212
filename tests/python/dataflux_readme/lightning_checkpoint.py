"""Trains with Lightning, saves by the plugin, and goes on from there. Arguments: project, bucket, prefix."""

import sys

import torch
from dataflux_pytorch.lightning import DatafluxLightningAsyncCheckpoint, DatafluxLightningCheckpoint
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset

project, bucket, prefix = sys.argv[1:]
saved = f"gcs://{bucket}/checkpoints/ckpt.ckpt"
quiet = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu", "limit_val_batches": 0}
dataloader = torch.utils.data.DataLoader(RandomDataset(32, 8))

trainer = Trainer(
    plugins=[DatafluxLightningCheckpoint(project_name=project)],
    callbacks=[ModelCheckpoint(f"gs://{bucket}/steps", save_top_k=-1, every_n_train_steps=1)],
    max_steps=4,
    **quiet,
)
trainer.fit(BoringModel(), dataloader)
trainer.save_checkpoint(saved)

trainer = Trainer(
    default_root_dir=f"gs://{bucket}/root",
    plugins=[DatafluxLightningAsyncCheckpoint(project_name=project)],
    max_steps=10,
    **quiet,
)
trainer.fit(BoringModel(), dataloader, ckpt_path=saved)
print("resumed at step", trainer.global_step)
