"""What a Config of the drop-in names asks of the supervisor."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

from .._arguments import integer
from .._supervisor import Settings, toml_text
from . import _client, _retry
from ._retry import DEFAULT, Field

log = logging.getLogger("millrace")
DEFAULT_COMPOSITE_BYTES = 100_000_000
LEAST_COMPOSED_BYTES, MOST_COMPOSED_BYTES = 4 << 10, 16 << 30  # what fetch.compose_max_bytes takes
MAX_LIST_WORKERS = 32
CPUS = os.cpu_count()
# Google's names, of which the reference lists STANDARD alone.
STORAGE_CLASSES = (
    "STANDARD",
    "NEARLINE",
    "COLDLINE",
    "ARCHIVE",
    "RAPID",
    "MULTI_REGIONAL",
    "REGIONAL",
    "DURABLE_REDUCED_AVAILABILITY",
)
Toml = dict[str, dict[str, Any]]


class BaseConfig:
    """The fields that both kinds of data sets have. They may be changed until a data set is made with them."""

    list_retry_config: Any = Field()
    download_retry_config: Any = Field()

    def __init__(
        self,
        sort_listing_results: bool = False,
        max_composite_object_size: int = DEFAULT_COMPOSITE_BYTES,
        num_processes: int | None = CPUS,
        prefix: str | None = None,
        max_listing_retries: int = 3,
        disable_compose: bool = False,
        list_retry_config: Any = DEFAULT,
        download_retry_config: Any = DEFAULT,
    ) -> None:
        self.sort_listing_results = sort_listing_results
        self.max_composite_object_size = 0 if disable_compose else max_composite_object_size
        self.num_processes = num_processes
        self.prefix = prefix
        self.max_listing_retries = max_listing_retries
        self.disable_compose = disable_compose
        if list_retry_config is not DEFAULT:
            self.list_retry_config = list_retry_config
        if download_retry_config is not DEFAULT:
            self.download_retry_config = download_retry_config


def bucket(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError(f"bucket_name is the name of a bucket, not {name!r}")
    if "/" in name:
        raise ValueError(f"bucket_name is {name!r}: it is the bucket's name alone, without gs:// and folders")
    return name


def uri(bucket_name: Any, config: BaseConfig) -> str:
    name = bucket(bucket_name)
    prefix = config.prefix
    if prefix is not None and not isinstance(prefix, str):
        raise TypeError(f"prefix is a str or None, not {type(prefix).__name__}")
    return f"gs://{name}/{prefix or ''}"


def settings(config: BaseConfig, storage_client: Any, classes: Iterable[str] = STORAGE_CLASSES[:1]) -> Settings:
    """Checks every field. What is as by default asks for the least, so that most data sets share one supervisor."""
    asked_by: list[str] = []
    toml: Toml = {}
    integer("max_listing_retries", config.max_listing_retries, 1, 1 << 20)
    integer("threads_per_process", getattr(config, "threads_per_process", 1), 1, 1 << 20)
    _listing(config, tuple(classes), toml, asked_by)
    _composing(config, toml, asked_by)
    _retries(config, toml, asked_by)
    environment = {} if storage_client is None else _client.take_over(storage_client, toml, asked_by)
    return Settings(toml_text(toml), tuple(sorted(environment.items())), tuple(asked_by))


def client_settings(storage_client: Any) -> Settings:
    """What a client alone asks for: of the checkpoints, which have no Config."""
    asked_by: list[str] = []
    toml: Toml = {}
    environment = {} if storage_client is None else _client.take_over(storage_client, toml, asked_by)
    return Settings(toml_text(toml), tuple(sorted(environment.items())), tuple(asked_by))


def _listing(config: BaseConfig, classes: tuple[str, ...], toml: Toml, asked_by: list[str]) -> None:
    toml["list"] = {"exclude_classes": [each for each in STORAGE_CLASSES if each not in classes]}
    if config.num_processes is None:  # os.cpu_count() may return it
        return
    processes = integer("num_processes", config.num_processes, 1, 1 << 20)
    if processes != CPUS:
        toml["list"]["workers"] = min(processes, MAX_LIST_WORKERS)
        asked_by.append("num_processes")


def _composing(config: BaseConfig, toml: Toml, asked_by: list[str]) -> None:
    most = integer("max_composite_object_size", config.max_composite_object_size, 0, 1 << 62)
    if config.disable_compose or most < LEAST_COMPOSED_BYTES:
        toml["fetch"] = {"compose": "never"}
        asked_by.append("disable_compose" if config.disable_compose else "max_composite_object_size")
        return
    toml["fetch"] = {"compose": "auto"}  # as the reference composes unless it is told not to
    if most != DEFAULT_COMPOSITE_BYTES:
        toml["fetch"]["compose_max_bytes"] = min(most, MOST_COMPOSED_BYTES)
        asked_by.append("max_composite_object_size")


def _retries(config: BaseConfig, toml: Toml, asked_by: list[str]) -> None:
    listing = _retry.settings("list_retry_config", vars(config).get("list_retry_config", DEFAULT))
    download = _retry.settings("download_retry_config", vars(config).get("download_retry_config", DEFAULT))
    given = (("list_retry_config", listing), ("download_retry_config", download))
    asked_by += [name for name, keys in given if keys is not None]
    if listing is not None and download is not None and listing != download:
        log.info("list_retry_config differs from download_retry_config, which is taken for both: there is one [retry]")
    chosen = listing if download is None else download
    if chosen is not None:
        toml["retry"] = dict(chosen)
