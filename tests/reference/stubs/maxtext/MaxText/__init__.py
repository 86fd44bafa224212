"""What the standalone loader asks of MaxText, which is a submodule that needs jax and tensorflow."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace


class max_logging:
    @staticmethod
    def log(text: str) -> None:
        print(text, flush=True)


class pyconfig:
    config = SimpleNamespace(
        local_batch_size=4,
        data_loader_num_workers=2,
        prefetch_factor=2,
        max_steps=-1,
        epochs=2,
        per_step_interval=0.0,
        gcs_metrics_bucket="",
        dataset_type="parquet",
    )

    @staticmethod
    def initialize(argv: Sequence[str]) -> None:
        pass


class train:
    @staticmethod
    def setup_mesh_and_model(config: SimpleNamespace) -> None:
        pass


class storage_utils:
    pass
