"""`awsio.python.lib.io.s3.s3dataset` of the S3 plug-in for PyTorch."""

from __future__ import annotations

import random
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch.distributed
import torch.utils.data

from millrace import _accelerate
from millrace.awsio import _urls
from millrace.s3torchconnector import S3IterableDataset as _Iterable
from millrace.s3torchconnector import S3MapDataset as _Map
from millrace.s3torchconnector import S3Reader
from millrace.s3torchconnector._uri import parse_s3_uri

META = re.compile(r"__[^/]*__($|/)")  # members of a tar file that webdataset keeps for itself
WHOLE_BYTES = 64 << 20  # an archive of more is unpacked while it is read


def file_exists(url: str) -> bool:
    """Whether there is an object of exactly this name."""
    try:
        get_file_size(url)
    except FileNotFoundError:
        return False
    return True


def get_file_size(url: str) -> int:
    """Bytes of the object. FileNotFoundError where there is none."""
    return _urls.client().head_object(*parse_s3_uri(url)).size


def list_files(url: str) -> list[str]:
    """The URLs that begin with this one, without those that stand for folders."""
    return _urls.below(_urls.listing(_urls.client(), url), parse_s3_uri(url)[0])


def _pair(reader: S3Reader) -> tuple[str, bytes]:
    return f"s3://{reader.bucket}/{reader.key}", reader.read()


class S3BaseClass:
    """What names its objects by URLs, each a file or the prefix of some. They are listed when it is made."""

    _names: list[str]

    @property
    def urls_list(self) -> list[str]:
        return self._names

    def _resolve(self, urls_list: str | Sequence[str]) -> dict[str, Any]:
        client = _urls.client()
        known = _urls.resolved(client, [urls_list] if isinstance(urls_list, str) else list(urls_list))
        self._names = [f"s3://{bucket}/{key}" for bucket, key, _ in known.places]
        return {"region": client.region, "endpoint": client.endpoint, "get_dataset_objects": known}


class S3Dataset(S3BaseClass, _Map):
    """`dataset[i]` is (URL, bytes). A DataLoader's batch is fetched at once, also for a subclass whose __getitem__
    calls this one's."""

    def __init__(self, urls_list: str | Sequence[str]) -> None:
        _Map.__init__(self, **self._resolve(urls_list), transform=_pair)


class _Chained(Iterator[tuple[str, bytes]]):
    """The parts of each object. An object that cannot be read, or unpacked, does not end it."""

    def __init__(self, objects: Iterator[Iterable[tuple[str, bytes]]]) -> None:
        self._objects = objects
        self._parts: Iterator[tuple[str, bytes]] = iter(())

    def __next__(self) -> tuple[str, bytes]:
        while True:
            for part in self._parts:
                return part
            self._parts = iter(next(self._objects))


class S3IterableDataset(S3BaseClass, _Iterable):
    """(name, bytes) of each member of a tar or zip file, and (URL, bytes) of each other object; fetched ahead.

    Each rank and DataLoader worker has its own part of the objects. shuffle_urls: in another order in each epoch.
    """

    def __init__(self, urls_list: str | Sequence[str], shuffle_urls: bool = False) -> None:
        for name in ("create_urls_list", "download_data", "get_stream", "worker_dist"):
            if hasattr(self, name):
                raise TypeError(
                    f"{type(self).__name__} has a {name} of its own, as for the plug-in, and millrace does not go "
                    "through it: override __iter__, or take millrace.s3torchconnector's data set with a transform"
                )
        _Iterable.__init__(self, **self._resolve(urls_list), transform=_parts)
        self.epoch, self.shuffle_urls = 0, shuffle_urls
        self.dist = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.rank, self.world_size = self._rank, self._world_size

    def __len__(self) -> int:
        return len(self._names)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @property
    def shuffled_list(self) -> list[str]:
        return [self._names[number] for number in self._order()]

    def _ranks(self) -> int:
        return self.world_size if self.dist else 1

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        _accelerate.refuse_to_divide(self._ranks())
        numbers = self._order()[self.rank :: self.world_size] if self.dist else self._order()
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            numbers = numbers[worker.id :: worker.num_workers]
        return _Chained(self._samples(numbers))

    def _order(self) -> list[int]:
        numbers = list(range(len(self._names)))
        if not self.shuffle_urls:
            return numbers
        random.seed(self.epoch)
        return random.sample(numbers, len(numbers))


def _parts(reader: S3Reader) -> Iterable[tuple[str, bytes]]:
    parts = {"tar": _of_tar, "zip": _of_zip}.get(reader.key[-3:])
    if parts is None:
        return [_pair(reader)]
    is_large = reader.seek(0, 2) > WHOLE_BYTES
    reader.seek(0)
    return parts(reader) if is_large else list(parts(reader))


def _of_tar(reader: S3Reader) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=reader, mode="r|*") as tar:
        for member in tar:
            if member.isreg() and not META.match(member.name):
                file = tar.extractfile(member)
                assert file is not None  # of a regular file
                yield member.name, file.read()


def _of_zip(reader: S3Reader) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(reader) as archive:
        for name in archive.namelist():
            yield name, archive.read(name)


class ShuffleDataset(torch.utils.data.IterableDataset[Any]):
    """The samples of another one, each drawn from a buffer of buffer_size by `random`."""

    def __init__(self, dataset: Iterable[Any], buffer_size: int) -> None:
        self.dataset, self.buffer_size = dataset, buffer_size

    def __iter__(self) -> Iterator[Any]:
        samples = iter(self.dataset)
        buffer: list[Any] = []
        for sample in samples:
            if len(buffer) == self.buffer_size:
                if not buffer:
                    return
                yield buffer.pop(random.randint(0, len(buffer) - 1))
            buffer.append(sample)
        while buffer:
            yield buffer.pop(random.randint(0, len(buffer) - 1))
