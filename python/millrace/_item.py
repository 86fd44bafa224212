"""Item: an object's bytes in private memory."""

from __future__ import annotations

from typing import Any


class Item(bytes):
    """Bytes with the object's name and encoding. What `Lease.copy()` gives, and a data set that decompresses."""

    name: str
    encoding: str

    def __new__(cls, data: Any = b"", name: str = "", encoding: str = "") -> Item:
        item = super().__new__(cls, data)
        item.name, item.encoding = name, encoding
        return item

    @property
    def size(self) -> int:
        return len(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Item, (bytes(self), self.name, self.encoding)

    def __repr__(self) -> str:
        return f"<millrace.Item {self.name!r}, {len(self)} bytes>"
