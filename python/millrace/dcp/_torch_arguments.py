"""The arguments of torch's FileSystemWriter and FileSystemReader, for writers and readers under other names."""

from __future__ import annotations

import inspect
from typing import Any

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter


def writer_options(writer: Any, path: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """All of FileSystemWriter's but path, with its defaults. ValueError for what a StorageWriter cannot do."""
    bound = inspect.signature(FileSystemWriter).bind(path, **arguments)
    bound.apply_defaults()
    options = {name: value for name, value in bound.arguments.items() if name != "path"}
    form = options.get("serialization_format")
    _refuse(writer, form if form is not None and form.value != "torch_save" else None, "serialization_format")
    return options


def storage_options(options: dict[str, Any]) -> dict[str, Any]:
    """What of them a StorageWriter takes, under its names. Each of thread_count threads has an object of its own."""
    return {
        "files_per_rank": int(options["thread_count"]) if options["single_file_per_rank"] else 1,
        "overwrite": options.get("overwrite", True),
        "extensions": options.pop("_extensions", None) or (),
    }


def check_reader(reader: Any, path: Any, arguments: dict[str, Any]) -> None:
    """The same of FileSystemReader."""
    bound = inspect.signature(FileSystemReader).bind(path, **arguments)
    _refuse(reader, bound.arguments.get("_extension_registry"), "_extension_registry")


def _refuse(storage: Any, value: Any, name: str) -> None:
    if value:
        raise ValueError(f"{type(storage).__name__} has no {name}: it writes torch.save's format, and reads it alone")
