"""Downloads of given objects through the supervisor: the functions of dataflux_core.download, with their parameters.

Each gives an object as it is now. What a listing of this process has comes by that listing, many objects at once.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from typing import Any

from ..._connection import Connection, Source
from ..._errors import ChangedError
from .. import _config, _known, _read, _retry
from .._format import Alone, Format
from .._retry import DEFAULT

MAX_NUM_OBJECTS_TO_COMPOSE = 32
COMPOSED_PREFIX = "dataflux-composed-objects/"

Objects = Sequence[tuple[str, int]]


class DataFluxDownloadOptimizationParams:
    """max_composite_object_size: composing is the supervisor's to decide; those of a data set carry its listing."""

    _listed: Source | None = None

    def __init__(self, max_composite_object_size: int) -> None:
        self.max_composite_object_size = max_composite_object_size


def dataflux_download_lazy(
    project_name: Any,
    bucket_name: str,
    objects: Objects,
    storage_client: Any = None,
    dataflux_download_optimization_params: DataFluxDownloadOptimizationParams | None = None,
    threading_enabled: bool = False,
    retry_config: Any = DEFAULT,
) -> Iterator[bytes]:
    """The bytes of each object, in order; the next ones are fetched meanwhile."""
    return _download(bucket_name, objects, storage_client, dataflux_download_optimization_params, retry_config)


def _download(
    bucket_name: str,
    objects: Objects,
    storage_client: Any,
    params: DataFluxDownloadOptimizationParams | None,
    retry_config: Any,
    threads: int = 1,
) -> Iterator[bytes]:
    """threads: what the caller asks for, which decides what the reference would compose."""
    names = [each[0] for each in objects]
    if not names:
        return
    limit = getattr(params, "max_composite_object_size", 0)
    transform = Format(bytes, Alone(lambda: objects, limit, threads) if limit and len(objects) > 1 else None)
    source = getattr(params, "_listed", None)
    if source is None:
        source = _known.listing(bucket_name, storage_client, names[0])
    if source is None:
        yield from _read.looked_up(_connection(storage_client, retry_config), bucket_name, names, transform)
        return
    reading, at = _read.Reading(source, transform), 0
    while at < len(names):
        try:
            for data in reading.named(bucket_name, names[at:]):
                at += 1
                yield data
        except (ChangedError, FileNotFoundError):  # of the version that was listed
            yield from _read.looked_up(source.connection(), bucket_name, names[at : at + 1], transform)
            at += 1


def dataflux_download(
    project_name: Any,
    bucket_name: str,
    objects: Objects,
    storage_client: Any = None,
    dataflux_download_optimization_params: DataFluxDownloadOptimizationParams | None = None,
    threading_enabled: bool = False,
    retry_config: Any = DEFAULT,
) -> list[bytes]:
    """The bytes of each object, in order."""
    return list(
        dataflux_download_lazy(
            project_name,
            bucket_name,
            objects,
            storage_client,
            dataflux_download_optimization_params,
            threading_enabled,
            retry_config,
        )
    )


def dataflux_download_threaded(
    project_name: Any,
    bucket_name: str,
    objects: Objects,
    storage_client: Any = None,
    dataflux_download_optimization_params: DataFluxDownloadOptimizationParams | None = None,
    threads: int = 1,
    retry_config: Any = DEFAULT,
) -> list[bytes]:
    """As dataflux_download: the objects come side by side without threads."""
    params = dataflux_download_optimization_params
    return list(_download(bucket_name, objects, storage_client, params, retry_config, threads))


def dataflux_download_parallel(
    project_name: Any,
    bucket_name: str,
    objects: Objects,
    storage_client: Any = None,
    dataflux_download_optimization_params: DataFluxDownloadOptimizationParams | None = None,
    parallelization: int = 1,
    retry_config: Any = DEFAULT,
) -> list[bytes]:
    """As dataflux_download: the objects come side by side without processes of the caller's."""
    return dataflux_download_threaded(
        project_name,
        bucket_name,
        objects,
        storage_client,
        dataflux_download_optimization_params,
        parallelization,
        retry_config,
    )


def df_download_thread(
    results_queue: queue.Queue[list[bytes]],
    project_name: Any,
    bucket_name: str,
    objects: Objects,
    storage_client: Any = None,
    dataflux_download_optimization_params: DataFluxDownloadOptimizationParams | None = None,
    retry_config: Any = DEFAULT,
) -> None:
    """Puts what dataflux_download returns into the queue."""
    results_queue.put(
        dataflux_download(
            project_name,
            bucket_name,
            objects,
            storage_client,
            dataflux_download_optimization_params,
            True,
            retry_config,
        )
    )


def download_single(storage_client: Any, bucket_name: str, object_name: str, retry_config: Any = DEFAULT) -> bytes:
    """The bytes of one object."""
    connection = _connection(storage_client, retry_config)
    found: bytes = next(_read.looked_up(connection, bucket_name, [object_name], Format(bytes)))
    return found


def compose(
    project_name: Any,
    bucket_name: str,
    destination_blob_name: str,
    objects: Objects,
    storage_client: Any = None,
    retry_config: Any = DEFAULT,
) -> Any:
    """Concatenates the objects into a new one, by Google's client; returns its blob."""
    if len(objects) > MAX_NUM_OBJECTS_TO_COMPOSE:
        raise ValueError(f"{len(objects)} objects: one compose request takes {MAX_NUM_OBJECTS_TO_COMPOSE} at most")
    if storage_client is None:
        from google.cloud import storage

        storage_client = storage.Client(project=project_name)
    bucket = storage_client.bucket(bucket_name)
    destination = bucket.blob(destination_blob_name)
    retry = _retry.of_core() if retry_config is DEFAULT else retry_config
    destination.compose([bucket.blob(each[0]) for each in objects], retry=retry)
    return destination


def decompose(
    project_name: Any,
    bucket_name: str,
    composite_object_name: str,
    objects: Objects,
    storage_client: Any = None,
    retry_config: Any = DEFAULT,
) -> list[bytes]:
    """The parts of a composed object: as many bytes of it as each of the objects says. ValueError if they differ."""
    whole = memoryview(download_single(storage_client, bucket_name, composite_object_name, retry_config))
    sizes = [each[1] for each in objects]
    if sum(sizes) != len(whole):
        raise ValueError(f"{composite_object_name} has {len(whole)} bytes, its {len(sizes)} parts have {sum(sizes)}")
    parts, at = [], 0
    for size in sizes:
        parts.append(bytes(whole[at : at + size]))
        at += size
    return parts


def _connection(storage_client: Any, retry_config: Any) -> Connection:
    config = _config.BaseConfig(disable_compose=True, download_retry_config=retry_config)
    return _known.connection_for(_config.settings(config, storage_client))


def __getattr__(name: str) -> Any:
    if name == "MODIFIED_RETRY":
        return _retry.of_core()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
