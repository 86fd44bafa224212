"""Errors as programs for gcs-torch-dataflux expect them: Google's classes beside Python's."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

from .._errors import from_code
from .._iterable import IterableDataset
from .._map import MapDataset
from .._ring import Failure


def failed(failure: Failure) -> Exception:
    return translated(from_code(failure.code, failure.text))


def translated(error: Exception) -> Exception:
    return like_google_s(error) if isinstance(error, (FileNotFoundError, PermissionError)) else error


class GoogleMap(MapDataset):
    """A MapDataset whose errors are Google's as well."""

    _error_of = staticmethod(failed)


class GoogleIterable(IterableDataset):
    """An IterableDataset whose errors are Google's as well."""

    _error_of = staticmethod(failed)


@contextlib.contextmanager
def errors(of_listing: bool = False) -> Iterator[None]:
    """Of a listing it is a RuntimeError too: the reference's worker processes can tell it no other way."""
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        raise like_google_s(error, of_listing) from error


def like_google_s(error: OSError, of_listing: bool = False) -> Exception:
    """The same error, which `except google.api_core.exceptions.NotFound` (or Forbidden) catches as well."""
    name = "NotFound" if isinstance(error, FileNotFoundError) else "Forbidden"
    made: Exception = __getattr__(f"Listing{name}" if of_listing else name)(str(error))
    return made


def __getattr__(name: str) -> Any:
    """NotFound, Forbidden, ListingNotFound, ListingForbidden: by name, since a DataLoader worker pickles the class of
    what it raises. Who catches Google's classes has loaded them."""
    if name not in _KINDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _class_of(name, sys.modules.get("google.api_core.exceptions"))


_KINDS: dict[str, tuple[type[Exception], ...]] = {
    "NotFound": (FileNotFoundError,),
    "Forbidden": (PermissionError,),
    "ListingNotFound": (FileNotFoundError, RuntimeError),
    "ListingForbidden": (PermissionError, RuntimeError),
}


@functools.cache
def _class_of(name: str, google: Any) -> Any:
    kinds = _KINDS[name]
    if google is not None:
        kinds += (google.NotFound if kinds[0] is FileNotFoundError else google.Forbidden,)

    def init(self: Any, message: str) -> None:
        for kind in reversed(kinds):
            kind.__init__(self, message)

    def text(self: Any) -> str:
        return str(self.args[0])

    return type(name, kinds, {"__init__": init, "__str__": text, "__module__": __name__})
