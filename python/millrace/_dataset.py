"""What the two kinds of data sets have in common."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, TypeVar, cast

from . import _arguments, _torch
from ._connection import Source
from ._gzip import MOST_BYTES, Decompress
from ._ring import Index, Lease
from ._sample import Sample
from ._stream import Transform, failed
from ._supervisor import connection
from ._trace import transformed

Self = TypeVar("Self", bound="Dataset")

Sequence.register(Index)


class Reported:
    """Reports torch's class as one of its bases once torch is loaded, so that isinstance holds (see _torch.mixed)."""

    _torch_base: ClassVar[str]

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return _torch.mixed(type(self), self._torch_base)

    def __add__(self, other: Any) -> Any:
        """As torch's data sets have it: a ConcatDataset, or a ChainDataset of iterable ones."""
        module = _torch.data_module()
        return NotImplemented if module is None else getattr(module, self._torch_base).__add__(self, other)


class Dataset(Reported):
    """A data set of the supervisor's, with the choices of its user. Pickles without a connection."""

    _torch_base = "Dataset"
    _error_of = staticmethod(failed)  # what is raised for an object that cannot be read
    _source: Source

    def __init__(
        self,
        source: Any,
        transform: Transform,
        on_error: str | None,
        window: int | None,
        writable: bool,
        decompress: bool | int,
        format: str | None,
    ) -> None:
        self._transform: Transform = _arguments.function("transform", transform)
        most_bytes = MOST_BYTES if decompress is True else decompress
        self._decompress = decompress is not False
        if self._decompress:
            self._transform = Decompress(
                self._transform, _arguments.integer("decompress", most_bytes, 1, sys.maxsize - 1)
            )
        policy = on_error if on_error is None else _arguments.choice("on_error", on_error, _arguments.POLICIES)
        self._window = _arguments.window(window)
        self._writable = _arguments.boolean("writable", writable)
        chosen = "" if format is None else _arguments.choice("format", format, _arguments.FORMATS)
        if isinstance(source, Source):
            self._source = source
        elif isinstance(source, _Objects):
            self._source = Source(connection(), None, source.uris, objects=True, format=chosen)
        elif _arguments.is_name(source):
            self._source = Source(connection(), source, (), format=chosen)
        else:
            uris = _arguments.uris(source, chosen != "objects")
            self._source = Source(connection(), None, uris, format=chosen)
        self._on_error = policy or self._source.on_error

    @classmethod
    def from_objects(cls: type[Self], uris: Iterable[str], **arguments: Any) -> Self:
        """A data set of exactly these objects, each named by its URI: in the order of their names, and none twice.

        The other arguments are those of the class.
        """
        return cls(cast(Any, _Objects(_arguments.uris(uris))), **arguments)

    @property
    def objects(self) -> Sequence[tuple[str, int]]:
        """(name, size) of each object, in the order of the names. Waits for the listing."""
        return cast("Sequence[tuple[str, int]]", self._source.index())

    @property
    def digest(self) -> str:
        """64 hex digits that are equal exactly for equal listings. Waits for the listing."""
        return self._source.index().digest

    def use_listing(self, digest: str) -> None:
        """Reads the listing of this digest, such as state["digest"], from now on: out of the cache, or the data set's
        saved index. A state's is loaded with it, but after a sampler was made: one that knows how many objects there
        are, or which, is made after this. DataLoader workers of torch's that live on do not follow: make a new loader.
        ChangedError, which says what has changed, where it is gone."""
        if self._source.use_listing(_arguments.digest("digest", digest)):
            self._listing_changed()

    def _listing_changed(self) -> None:
        """What lies beside the source and is of the listing before."""

    def _delivered(self, lease: Lease) -> Any:
        """What a transform gets, through the transform."""
        if self._source.is_samples() and self._decompress:
            raise ValueError("decompress=True is for whole objects: a transform decompresses members of a shard")
        item = Sample.of(lease) if self._source.is_samples() else lease
        return item if self._transform is None else transformed(self._transform, item, lease.index)

    def __repr__(self) -> str:
        return f"<millrace.{type(self).__name__} {self._source}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._pickled())

    def _pickled(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def _unpickle(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def check_own(dataset: Any, cls: type, *methods: str) -> None:
    """Of a data set that holds one of millrace's: what a subclass has changed, millrace's own would not do."""
    for name in methods:
        if getattr(type(dataset), name) is not getattr(cls, name):
            raise ValueError(
                f"{type(dataset).__name__} has a {name} of its own, which millrace.DataLoader would not call: give it "
                "to torch.utils.data.DataLoader"
            )


class _Objects:
    """Marks an explicit list of objects."""

    def __init__(self, uris: tuple[str, ...]) -> None:
        self.uris = uris


def _rebuild(cls: type, state: dict[str, Any]) -> Any:
    dataset: Any = object.__new__(cls)
    dataset._unpickle(state)
    _torch.register_collate()  # a spawned worker has not done so yet
    return dataset
