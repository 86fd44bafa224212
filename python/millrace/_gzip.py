"""Objects that the store keeps compressed, with Content-Encoding: gzip."""

from __future__ import annotations

import gzip
import zlib
from typing import Any, Callable

from ._errors import Error
from ._item import Item
from ._ring import Lease


def contents(data: Any, name: str) -> bytes:
    """What an object holds whose bytes are gzip's. Error where they are not."""
    try:
        return gzip.decompress(memoryview(data))
    except (EOFError, OSError, zlib.error) as error:
        raise Error(
            f"{name}: its Content-Encoding is gzip, and its bytes are not: {error}; remove that from its metadata, "
            "or store it again"
        ) from error


class Decompress:
    """The transform of a data set with decompress=True: one that is stored as gzip becomes an Item of its contents."""

    def __init__(self, transform: Callable[[Any], Any] | None) -> None:
        self.transform = transform

    def __call__(self, lease: Lease) -> Any:
        sample: Lease | Item = lease
        if lease.encoding == "gzip":
            sample = Item(contents(lease, lease.name), lease.name)
            lease.release()
        return sample if self.transform is None else self.transform(sample)
