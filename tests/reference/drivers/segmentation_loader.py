"""The data set of demo/image_segmentation, whose train.py needs Ray and a GPU: python segmentation_loader.py BUCKET"""

from __future__ import annotations

import sys

import torch
from pytorch_loader import DatafluxPytTrain

dataset = DatafluxPytTrain(
    project_name="project",
    bucket_name=sys.argv[1],
    config=sys.modules["pytorch_loader"].dataflux_mapstyle_dataset.Config(sort_listing_results=True),
    patch_size=[32, 32, 32],
    oversampling=0.4,
    images_prefix="volumes/images/",
    labels_prefix="volumes/labels/",
)
print(len(dataset), dataset.images[0], dataset.labels[-1])
loader = torch.utils.data.DataLoader(dataset, batch_size=2, shuffle=True, num_workers=2, drop_last=True)
for _ in range(2):
    print([tuple(part.shape) for images, labels in loader for part in (images, labels)])
print(dataset[3][0].shape)
