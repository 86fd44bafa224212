"""What a data set consists of, in its order, and how its objects come: ahead of the loop, through shared memory."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Callable, NamedTuple, Union

from .._connection import Source
from .._errors import ChangedError
from .._map import MapDataset
from .._ring import Failure, Lease
from .._stream import Stream
from ._exceptions import errors
from ._s3client import ObjectInfo, S3Client
from ._uri import parse_s3_uri

log = logging.getLogger("millrace")
LARGE_BYTES = 64 << 20  # such an object is read as a file: a few of them would take all of the arena


class S3BucketKeyData(NamedTuple):
    """An object of a data set."""

    bucket: str
    key: str
    object_info: ObjectInfo | None = None


class Prefix(NamedTuple):
    """The objects whose names begin like this."""

    uri: str


class Objects(NamedTuple):
    """Explicit ones, in this order."""

    uris: tuple[str, ...]


def objects(uris: str | Iterable[str]) -> Objects:
    found = Objects((uris,) if isinstance(uris, str) else tuple(uris))
    for uri in found.uris:
        parse_s3_uri(uri)
    return found


class Known(NamedTuple):
    """Such as were listed already, by bucket."""

    places: list[S3BucketKeyData]
    sources: dict[str, list[Source]]


GetObjects = Union[Prefix, Objects, Known, Callable[[S3Client], Iterable[S3BucketKeyData]]]
Delivery = Union[Lease, Failure, None]  # None: it was not fetched, and is read as a file


class Listed:
    """The objects, numbered in the data set's order. Pickles; made in the main process, which lists them once."""

    def __init__(self, client: S3Client, get_objects: GetObjects) -> None:
        self._places: list[S3BucketKeyData] | None = None  # None: the listing of a prefix is all there is
        self._sources: dict[str, list[Source]] = {}  # by bucket
        self._prefix: Source | None = None
        self._bucket = ""
        if isinstance(get_objects, Prefix):
            self._bucket, _ = parse_s3_uri(get_objects.uri)
            self._prefix = Source(client.connection(), None, (get_objects.uri,), format="objects", anew=True)
            return
        if isinstance(get_objects, Known):
            self._places, self._sources = get_objects
            return
        if isinstance(get_objects, Objects):
            self._places = [S3BucketKeyData(*parse_s3_uri(uri)) for uri in get_objects.uris]
        else:
            self._places = list(get_objects(client))
        by_bucket: dict[str, dict[str, None]] = {}
        for bucket, key, _ in self._places:
            by_bucket.setdefault(bucket, {})[f"s3://{bucket}/{key}"] = None
        for bucket, uris in by_bucket.items():
            with contextlib.suppress(ValueError):  # a key that no list can hold: they are read as files
                self._sources[bucket] = [explicit(client, uris)]

    def source(self) -> Source | None:
        """The listing whose numbers are this one's, if there is one."""
        return self._prefix

    def __len__(self) -> int:
        if self._places is not None:
            return len(self._places)
        assert self._prefix is not None
        with errors:
            return len(self._prefix.index())

    def place(self, number: int) -> S3BucketKeyData:
        return next(self._entries([number]))[2]

    def deliveries(self, numbers: Sequence[int]) -> Generator[tuple[S3BucketKeyData, Delivery], None, None]:
        """Each of these, in this order, many on their way."""
        with contextlib.ExitStack() as stack:
            lanes: dict[Source, Iterator[Lease | Failure]] = {}
            for source, _, place in self._entries(numbers):
                if source is None:
                    yield place, None
                    continue
                lane = lanes.get(source)
                if lane is None:
                    theirs = _stream(source, self._numbers(source, numbers))
                    lane = lanes[source] = stack.enter_context(contextlib.closing(theirs))
                with errors:
                    delivery = next(lane)
                yield place, delivery

    def fetch(self, numbers: Sequence[int], maps: dict[Source, Fetched]) -> list[tuple[S3BucketKeyData, Delivery]]:
        """The same, all at once, through lanes that are kept in maps."""
        entries = list(self._entries(numbers))
        found: list[tuple[S3BucketKeyData, Delivery]] = [(place, None) for _, _, place in entries]
        for source in dict.fromkeys(of for of, _, _ in entries if of is not None):
            which = [i for i, (of, _, _) in enumerate(entries) if of is source]
            fetched = maps.get(source)
            if fetched is None:
                fetched = maps.setdefault(source, Fetched(source))
            with errors:
                deliveries = fetched.__getitems__([entries[i][1] for i in which])
            for i, delivery in zip(which, deliveries):
                found[i] = entries[i][2], delivery
        return found

    def _entries(self, numbers: Iterable[int]) -> Iterator[tuple[Source | None, int, S3BucketKeyData]]:
        """Where each is listed, its number there, and what it is; no listing for one that is read as a file."""
        if self._prefix is None:
            for number in numbers:
                yield self._listed_entry(number)
            return
        bucket, source = self._bucket, self._prefix
        with errors:
            index = source.index()
        for number in numbers:
            name, size = index[number]
            place = S3BucketKeyData(bucket, name, ObjectInfo(name, size=size))
            yield None if size > LARGE_BYTES else source, number, place

    def _listed_entry(self, number: int) -> tuple[Source | None, int, S3BucketKeyData]:
        assert self._places is not None
        place = self._places[number]
        found = self._find(place.bucket, place.key)
        if found is None:
            return None, 0, place
        source, at, size = found
        known = place if place.object_info is not None else place._replace(object_info=ObjectInfo(place.key, size=size))
        return None if size > LARGE_BYTES else source, at, known

    def _numbers(self, source: Source, numbers: Iterable[int]) -> Iterator[int]:
        return (at for of, at, _ in self._entries(numbers) if of is source)

    def _find(self, bucket: str, key: str) -> tuple[Source, int, int] | None:
        for source in self._sources.get(bucket, ()):
            try:
                with errors:
                    index = source.index()
                number = index.find(key)
                return source, number, index[number][1]
            except KeyError:
                continue
            except (FileNotFoundError, PermissionError, ChangedError, ValueError) as error:
                if self._sources.pop(bucket, None) is not None:  # other threads may have seen it too
                    log.warning("objects of s3://%s are looked up one by one as they are read: %s", bucket, error)
                break
        return None


def explicit(client: S3Client, uris: Iterable[str]) -> Source:
    """A listing of these objects of one bucket, which are looked up."""
    return Source(client.connection(), None, tuple(uris), objects=True, format="objects")


class _Deliveries(Stream):
    """What a lane gives, as it is."""

    def _open(self, delivery: Lease | Failure) -> Any:
        return delivery


class Fetched(MapDataset):
    """What a lane gives, by number."""

    def _open(self, delivery: Lease | Failure) -> Any:
        return delivery


def _stream(source: Source, numbers: Iterable[int]) -> Generator[Lease | Failure, None, None]:
    with errors:
        lane, _ = source.open_lane(None, 1, None, False)
        plan = source.plan_of_numbers()
    yield from _Deliveries(lane, plan, None, "raise").numbered(numbers)
