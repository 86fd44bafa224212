"""S3ClientConfig, and what region, endpoint and it ask of the supervisor."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from .._arguments import boolean, integer
from .._supervisor import Settings, toml_text

DEFAULT_PART_BYTES = 8 << 20
DEFAULT_ATTEMPTS = 10
RANGE_BYTES = (256 << 10, 16 << 30)  # what fetch.range_bytes takes
PART_BYTES = (5 << 20, 5 << 30)  # what checkpoint.part_bytes takes
MOST_ATTEMPTS = 1000


@dataclass(frozen=True)
class S3ClientConfig:
    """The reference's fields, in its order. docs/s3torchconnector.md says what each does here."""

    throughput_target_gbps: float = 10.0
    part_size: int = DEFAULT_PART_BYTES
    unsigned: bool = False
    force_path_style: bool = False
    max_attempts: int = DEFAULT_ATTEMPTS
    profile: str | None = None
    requester_pays: bool = False


def settings(region: str, endpoint: str | None, config: S3ClientConfig) -> Settings:
    """Checks every field. What is as by default asks for nothing, so that most data sets share one supervisor."""
    if not isinstance(region, str):
        raise TypeError(f"region is a str such as 'us-east-1', not {type(region).__name__}")
    if endpoint is not None and not isinstance(endpoint, str):
        raise TypeError(f"endpoint is a URL or None, not {type(endpoint).__name__}")
    asked_by: list[str] = []
    toml: dict[str, dict[str, Any]] = {}
    s3 = {}
    if region and region != (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        s3["region"] = region  # every program names one, and AWS's answers correct it: no reason for a warning
    if endpoint:
        s3["endpoint"] = endpoint
        asked_by.append("endpoint")
    s3.update(_client(config, asked_by))
    if s3:
        toml["s3"] = s3
    part = integer("part_size", config.part_size, 1, 1 << 62)
    if part != DEFAULT_PART_BYTES:
        toml["fetch"] = {"range_bytes": _within(part, RANGE_BYTES)}
        toml["checkpoint"] = {"part_bytes": _within(part, PART_BYTES)}
        asked_by.append("part_size")
    attempts = integer("max_attempts", config.max_attempts, 1, 1 << 31)
    if attempts != DEFAULT_ATTEMPTS:
        toml["retry"] = {"attempts": min(attempts, MOST_ATTEMPTS)}
        asked_by.append("max_attempts")
    if not config.throughput_target_gbps > 0:
        raise ValueError(f"throughput_target_gbps is {config.throughput_target_gbps}: it must be more than 0")
    return Settings(toml_text(toml), (), tuple(asked_by))


def _client(config: S3ClientConfig, asked_by: list[str]) -> dict[str, str]:
    keys = {}
    chosen = (
        ("unsigned", "auth", "anonymous"),
        ("force_path_style", "addressing", "path"),
        ("requester_pays", "requester_pays", "yes"),
    )
    for field, key, value in chosen:
        if boolean(field, getattr(config, field)):
            keys[key] = value
            asked_by.append(field)
    if config.profile is not None:  # also where AWS_PROFILE names it: that is behind the keys of the environment
        keys["profile"] = str(config.profile)
        asked_by.append("profile")
    return keys


def _within(value: int, bounds: tuple[int, int]) -> int:
    return min(max(value, bounds[0]), bounds[1])
