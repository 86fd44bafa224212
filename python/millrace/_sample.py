"""Sample: the members of one sample of a tar shard, each a view of the shared memory that its Lease holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ._errors import Error
from ._item import Item
from ._ring import Lease, members

KEY, URL = "__key__", "__url__"


class Sample(Mapping[str, Any]):
    """A mapping of suffix to read-only memoryview, in the shard's order; and `__key__` and `__url__`, which are str.

    A view keeps the shared memory of the whole sample. `copy()` is a dict of bytes that does not.
    """

    __slots__ = ("__weakref__", "_data", "_members", "key", "url")

    def __init__(self, data: Lease | Item, key: str, url: str) -> None:
        found, self._members = members(data)
        if found != key:
            raise Error(f"the index is of another shard, which has {found!r} there")
        self._data = data
        self.key, self.url = key, url

    @classmethod
    def of(cls, lease: Lease) -> Sample:
        """The sample whose bytes these are."""
        try:
            return cls(lease, lease.name, lease.url)
        except (Error, ValueError) as error:
            raise type(error)(f"{lease.url}: the sample {lease.name!r} cannot be taken apart: {error}") from None

    def __getitem__(self, name: str) -> Any:
        place = self._members.get(name)
        if place is not None:
            return memoryview(self._data)[place[0] : place[0] + place[1]]
        if name == KEY:
            return self.key
        if name == URL:
            return self.url
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield KEY
        yield URL
        yield from self._members

    def __len__(self) -> int:
        return 2 + len(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members or name in (KEY, URL)

    @property
    def lease(self) -> Lease | Item:
        """The bytes of all members with their headers."""
        return self._data

    def copy(self) -> dict[str, Any]:
        """A dict with bytes in place of the views: what webdataset's decoders take."""
        return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in self.items()}

    def release(self) -> None:
        """Gives the shared memory back now, or with the last view. May be called twice."""
        if isinstance(self._data, Lease):
            self._data.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return Sample, (self._data, self.key, self.url)

    def __repr__(self) -> str:
        return f"<millrace.Sample {self.key!r} of {self.url}: {', '.join(self._members)}>"
