"""What both kinds of drop-in data sets share: bytes for data_format_fn, a list of objects, their settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Callable, ClassVar, overload

from .._connection import Connection
from .._ring import Lease
from .._supervisor import Settings, connection
from . import _config
from ._config import BaseConfig

Pair = tuple[str, int]


def data_format_default(data: bytes) -> Any:
    """What a sample is without a data_format_fn: its bytes."""
    return data


class Format:
    """The transform of a drop-in data set: data_format_fn over the object's bytes, which are the function's own."""

    def __init__(self, function: Callable[[bytes], Any]) -> None:
        self.function = function

    def __call__(self, lease: Lease) -> Any:
        return self.function(bytes(lease))


class Objects(Sequence[Pair]):
    """(name, size) of each object, like the list that it stands for, without a copy of it in each process."""

    def __init__(self, index: Sequence[Pair]) -> None:
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> list[Pair]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._index[index]

    def __iter__(self) -> Iterator[Pair]:
        return map(self._index.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, Objects)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other))

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __add__(self, other: list[Pair]) -> list[Pair]:
        return [*self, *other]

    def __repr__(self) -> str:
        return repr(self[:]) if len(self) <= 20 else f"<{len(self)} objects, the first {self[0]!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self[:],)


class Names:
    """The arguments and attributes of the reference's data sets; mixed in front of millrace's."""

    config_class: ClassVar[type[BaseConfig]]
    project_name: Any
    bucket_name: str
    config: BaseConfig
    data_format_fn: Callable[[bytes], Any]
    _settings: Settings
    _source: Any

    def __init__(
        self,
        project_name: Any,
        bucket_name: str,
        config: BaseConfig | None = None,
        data_format_fn: Callable[[bytes], Any] = data_format_default,
        storage_client: Any = None,
        **more: Any,
    ) -> None:
        chosen = self.config_class() if config is None else config
        if not isinstance(chosen, BaseConfig):
            raise TypeError(
                f"config is a Config of millrace.dataflux, not {type(chosen).__module__}.{type(chosen).__name__}"
            )
        if not callable(data_format_fn):
            raise TypeError(f"data_format_fn is a function, not {type(data_format_fn).__name__}")
        self.project_name, self.bucket_name = project_name, bucket_name
        self.config, self.data_format_fn = chosen, data_format_fn
        self._settings = _config.settings(chosen, storage_client)
        uri = _config.uri(bucket_name, chosen)
        super().__init__(uri, transform=Format(data_format_fn), **more)  # type: ignore[call-arg]

    def _connect(self) -> Connection:
        return connection(self._settings)

    @property
    def objects(self) -> Objects:
        """(name, size) of each object, in the order of the names. Waits for the listing."""
        return Objects(self._source.index())
