"""The names of the S3 plug-in for PyTorch, and torchdata's S3 pipes."""

from __future__ import annotations

import io
import random
import tarfile
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterDataPipe

from millrace.awsio import _urls
from millrace.awsio.python.lib.io.s3 import s3dataset
from millrace.awsio.python.lib.io.s3.s3dataset import (
    S3Dataset,
    S3IterableDataset,
    ShuffleDataset,
    file_exists,
    get_file_size,
    list_files,
)
from millrace.s3torchconnector import S3Exception

from .stores import Stores, running, stores

__all__ = ["running", "stores"]
NAMES = [f"pictures/{i:02}" for i in range(12)]
URLS = [f"s3://bucket/{name}" for name in NAMES]
PAIRS = [(url, url.encode() * 3) for url in URLS]


def tar_file(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("folder"))
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type = tarfile.SYMTYPE
        tar.addfile(link)
    return file.getvalue()


MEMBERS = {"1.cls": b"1", "1.png": b"picture", "2.cls": b"2"}


@pytest.fixture(scope="module", autouse=True)
def filled(running: Stores) -> None:
    for url, data in PAIRS:
        running.put(url[len("s3://bucket/") :], data)
    running.put("archives/a.tar", tar_file({"__index__": b"of webdataset", "__x__/y": b"its own", **MEMBERS}))
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("in/zip", b"zipped")
    running.put("archives/b.zip", zipped.getvalue())
    running.put("archives/c", b"neither")


def test_urls_are_files_or_prefixes(stores: Stores) -> None:
    assert list_files("s3://bucket/pictures/0") == URLS[:10]
    assert (file_exists(URLS[0]), file_exists("s3://bucket/pictures"), file_exists("s3://bucket/no")) == (1, 0, 0)
    assert get_file_size(URLS[0]) == len(PAIRS[0][1])
    for urls, expected in (
        ("s3://bucket/pictures", URLS),
        (["s3://bucket/pictures/1", URLS[3], URLS[3]], [*URLS[10:], URLS[3], URLS[3]]),
        (URLS[::-1] * 2, URLS[::-1] * 2),
        ([*URLS * 2, "s3://bucket/pictures/1"], [*URLS * 2, *URLS[10:]]),
        ([], []),
    ):
        dataset = S3Dataset(urls)
        assert dataset.urls_list == expected and len(dataset) == len(expected)
        assert [dataset[i] for i in range(len(dataset))] == [(url, url.encode() * 3) for url in expected]
    with pytest.raises(AssertionError, match="The directory s3://bucket/none does not contain any objects"):
        S3Dataset([URLS[0], "s3://bucket/none"])
    with pytest.raises(ValueError):
        S3Dataset("bucket/none")
    with pytest.raises(S3Exception):
        get_file_size("s3://bucket/none")


class Labelled(S3Dataset):
    def __getitem__(self, i: int) -> Any:
        url, data = super().__getitem__(i)
        return url[-2:], len(data)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_over_the_data_sets(stores: Stores, workers: int) -> None:
    more: dict[str, Any] = {"batch_size": 5, "num_workers": workers, "collate_fn": list}
    loader = DataLoader(Labelled("s3://bucket/pictures/"), **more)
    assert [each for batch in loader for each in batch] == [(url[-2:], len(data)) for url, data in PAIRS]
    found = [each for batch in DataLoader(S3IterableDataset("s3://bucket/pictures/"), **more) for each in batch]
    assert sorted(found) == PAIRS  # each worker has a part of its own
    if workers == 0:
        assert found == PAIRS


@pytest.mark.parametrize("whole", [0, 1 << 20])
def test_archives(stores: Stores, whole: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3dataset, "WHOLE_BYTES", whole)
    dataset = S3IterableDataset("s3://bucket/archives/")
    expected = [("folder", b""), *MEMBERS.items(), ("in/zip", b"zipped"), ("s3://bucket/archives/c", b"neither")]
    assert list(dataset) == expected and len(dataset) == 3
    stores.put("broken/a.tar", b"no tar file at all" * 100)
    with pytest.raises(tarfile.TarError):
        list(S3IterableDataset("s3://bucket/broken/a.tar"))
    stores.put("broken/b", b"whole")
    found = iter(S3IterableDataset("s3://bucket/broken/"))
    with pytest.raises(tarfile.TarError):
        next(found)
    assert list(found) == [("s3://bucket/broken/b", b"whole")], "it goes on with the next object"


def test_shuffling_is_as_there(stores: Stores) -> None:
    dataset = S3IterableDataset("s3://bucket/pictures/", shuffle_urls=True)
    for epoch in (0, 5):
        dataset.set_epoch(epoch)
        random.seed(epoch)
        expected = random.sample(URLS, len(URLS))
        assert dataset.shuffled_list == expected == [url for url, _ in dataset]
    assert list(ShuffleDataset(range(10), 1)) == list(range(10))
    assert sorted(ShuffleDataset(range(10), 4)) == list(range(10)) == sorted(ShuffleDataset(range(10), 40))
    assert not list(ShuffleDataset([], 4)) and not list(ShuffleDataset(range(3), 0))


def test_ranks_have_parts(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 5)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    dataset = S3IterableDataset("s3://bucket/pictures/")
    assert (dataset.dist, dataset.rank, dataset.world_size) == (True, 3, 5)
    assert list(dataset) == PAIRS[3::5]
    dataset.rank, dataset.world_size = 0, 1
    assert list(dataset) == PAIRS


def test_hooks_that_would_not_be_called_are_refused(stores: Stores) -> None:
    class Everywhere(S3IterableDataset):
        def worker_dist(self, urls: list[str]) -> list[str]:
            return urls

    with pytest.raises(TypeError, match="Everywhere has a worker_dist of its own"):
        Everywhere("s3://bucket/pictures/")


class Wrapped(IterDataPipe[str]):
    def __init__(self, urls: list[str]) -> None:
        self.urls = urls

    def __iter__(self) -> Iterator[str]:
        return iter(self.urls)

    def __len__(self) -> int:
        return len(self.urls)


def test_the_pipes(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    from millrace.awsio import S3FileLister, S3FileLoader, _datapipes

    monkeypatch.setattr(_datapipes, "AT_ONCE", 5)
    listed = S3FileLister(Wrapped(["s3://bucket/pictures/", URLS[0]]), length=13)
    assert list(listed) == [*URLS, URLS[0]] and len(listed) == 13
    with pytest.raises(TypeError):
        len(S3FileLister(Wrapped([])))
    assert [(url, file.read()) for url, file in S3FileLoader(listed)] == [*PAIRS, PAIRS[0]]
    stores.put("empty", b"")
    loaded = S3FileLoader(Wrapped([URLS[0], "s3://bucket/empty", "s3://bucket/none", URLS[1]]))
    assert len(loaded) == 4
    files = iter(loaded)
    assert [next(files)[1].read() for _ in range(2)] == [PAIRS[0][1], b""]
    with pytest.raises(S3Exception, match="none"):
        next(files)
    pipe: Any = Wrapped(["s3://bucket/pictures/"])
    chained = pipe.list_files_by_s3().sharding_filter().load_files_by_s3()
    loader: Any = DataLoader(chained, batch_size=4, num_workers=2, collate_fn=list)
    assert sorted((url, file.read()) for batch in loader for url, file in batch) == PAIRS


def test_where_the_plug_in_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("S3_ENDPOINT_URL", "http://127.0.0.1:1")
    client = _urls.client()
    assert (client.region, client.endpoint) == ("us-west-2", "http://127.0.0.1:1")
