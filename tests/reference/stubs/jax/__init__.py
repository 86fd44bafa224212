"""What the standalone loader asks of jax, for one process without devices."""

from __future__ import annotations

from typing import Any

from . import experimental

__all__ = ["config", "device_count", "devices", "experimental", "process_count", "process_index"]


class Settings:
    def update(self, name: str, value: Any) -> None:
        pass


config = Settings()


def process_index() -> int:
    return 0


def process_count() -> int:
    return 1


def device_count() -> int:
    return 0


def devices() -> list[Any]:
    return []
