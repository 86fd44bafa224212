"""S3FileLister and S3FileLoader, as torchdata up to 0.9 has them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Any

from torch.utils.data import IterDataPipe, functional_datapipe

from .._file import File
from .._looked_up import LookedUp, Range
from ..s3torchconnector._exceptions import errors
from ..s3torchconnector._uri import parse_s3_uri
from . import _urls

AT_ONCE = 64  # objects that are on their way together


class _Pipe(IterDataPipe[Any]):
    """request_timeout_ms, buffer_size and multi_part_download need nothing: [retry], [http] and [fetch] have theirs."""

    def __init__(self, source_datapipe: Iterable[str], region: str) -> None:
        self.source_datapipe = source_datapipe
        self._client = _urls.client(region)
        self._client.connection()  # in the process that starts the workers


class S3FileLister(_Pipe):
    """The URLs of all objects whose names begin with one of the source's, without those that stand for folders."""

    def __init__(
        self, source_datapipe: Iterable[str], length: int = -1, request_timeout_ms: int = -1, region: str = ""
    ) -> None:
        super().__init__(source_datapipe, region)
        self.length = length

    def __iter__(self) -> Iterator[str]:
        for prefix in self.source_datapipe:
            yield from _urls.below(_urls.listing(self._client, prefix), parse_s3_uri(prefix)[0])

    def __len__(self) -> int:
        if self.length < 0:
            raise TypeError(f"{type(self).__name__} instance doesn't have valid length")
        return self.length


class S3FileLoader(_Pipe):
    """(URL, file) of each of the source's URLs; AT_ONCE of them are read together."""

    def __init__(
        self,
        source_datapipe: Iterable[str],
        request_timeout_ms: int = -1,
        region: str = "",
        buffer_size: int | None = None,
        multi_part_download: bool | None = None,
    ) -> None:
        super().__init__(source_datapipe, region)

    def __iter__(self) -> Iterator[tuple[str, io.BytesIO]]:
        urls = iter(self.source_datapipe)
        while some := list(islice(urls, AT_ONCE)):
            for _, of_bucket in groupby(some, key=lambda url: parse_s3_uri(url)[0]):
                yield from self._together(list(of_bucket))

    def __len__(self) -> int:
        return len(self.source_datapipe)  # type: ignore[arg-type]

    def _together(self, urls: list[str]) -> Iterator[tuple[str, io.BytesIO]]:
        try:
            found = LookedUp(self._client.connection(), urls)
        except FileNotFoundError:  # each by itself, up to the one that is missing
            for url in urls:
                yield url, io.BytesIO(self._client.get_object(*parse_s3_uri(url)).read())
            return
        with found, errors:
            for url, data in zip(urls, self._read(found, urls)):
                yield url, io.BytesIO(data)

    @staticmethod
    def _read(found: LookedUp, urls: list[str]) -> Iterator[bytes]:
        """All of each, verified: those of more than a block by a reader."""
        places = [found.find(url) for url in urls]
        blocks = found.whole([Range(number, 0, size) for number, size in places if 0 < size <= found.block_bytes])
        for url, (_, size) in zip(urls, places):
            if size > found.block_bytes:
                with File(url, found, found.range_reader(url, False)) as file:
                    yield file.read()
                continue
            data = next(blocks)[1] if size else b""
            if isinstance(data, Exception):
                raise data
            yield data


for _name, _pipe in (("list_files_by_s3", S3FileLister), ("load_files_by_s3", S3FileLoader)):
    if _name not in IterDataPipe.functions:  # torchdata has them too
        functional_datapipe(_name)(_pipe)
