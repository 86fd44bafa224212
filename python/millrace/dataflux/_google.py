"""Errors as programs for gcs-torch-dataflux expect them: Google's classes beside Python's."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from .._errors import from_code
from .._map import MapDataset
from .._ring import Failure, Lease
from .._stream import Stream


class GoogleStream(Stream):
    """A Stream whose errors are Google's as well."""

    def _open(self, delivery: Lease | Failure) -> Any:
        if isinstance(delivery, Failure):
            raise _failed(delivery)
        return super()._open(delivery)


class GoogleMap(MapDataset):
    """A MapDataset whose errors are Google's as well."""

    def _open(self, delivery: Lease | Failure) -> Any:
        if isinstance(delivery, Failure):
            raise _failed(delivery)
        return super()._open(delivery)


def _failed(failure: Failure) -> Exception:
    error = from_code(failure.code, failure.text)
    return like_google_s(error) if isinstance(error, (FileNotFoundError, PermissionError)) else error


@contextlib.contextmanager
def errors(*more: type[Exception]) -> Iterator[None]:
    """Of a listing it is a RuntimeError too: the reference's worker processes can tell it no other way."""
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        raise like_google_s(error, *more) from error


def like_google_s(error: OSError, *more: type[Exception]) -> Exception:
    """The same error, which `except google.api_core.exceptions.NotFound` (or Forbidden) catches as well."""
    google = sys.modules.get("google.api_core.exceptions")  # who catches its classes has loaded it
    kinds: list[Any] = list(more)
    if google is not None:
        kinds.append(google.NotFound if isinstance(error, FileNotFoundError) else google.Forbidden)
    made: Exception = _mixed(type(error), *kinds)(str(error))
    return made


def _mixed(own: type[Exception], *kinds: type[Exception]) -> Any:
    def init(self: Any, message: str) -> None:
        for kind in reversed(kinds):
            kind.__init__(self, message)

    def text(self: Any) -> str:
        return str(self.args[0])

    return type(own.__name__, (own, *kinds), {"__init__": init, "__str__": text, "__module__": own.__module__})
