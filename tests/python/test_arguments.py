"""Every wrong argument is an error where it was given, and says what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millrace
from millrace import _arguments
from tests.python.conftest import Folder
from tests.python.helpers import keep


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"/x"


DATA_SET: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"source": 3}, TypeError, "URI"),
    ({"source": []}, ValueError, "at least one"),
    ({"source": ""}, ValueError, "not a URI"),
    ({"source": [3]}, TypeError, "str or a path"),
    ({"source": b"file:///x"}, TypeError, "not"),
    ({"source": BytesPath()}, TypeError, "a URI is a str, not bytes"),
    ({"source": "gs://a/\0"}, ValueError, "not a URI"),
    ({"transform": 3}, TypeError, "transform"),
    ({"on_error": "ignore"}, ValueError, "'skip'"),
    ({"window": 0}, ValueError, "window"),
    ({"window": 1 << 17}, ValueError, "65536"),
    ({"writable": 1}, TypeError, "writable"),
]
ITERABLE: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"shuffle": 1}, TypeError, "shuffle must be True, False or 'block', not int"),
    ({"shuffle": "blocks"}, ValueError, "'block'"),
    ({"block_bytes": 1}, ValueError, "block_bytes and mix_blocks are for shuffle='block'"),
    ({"shuffle": True, "mix_blocks": 2}, ValueError, "block_bytes and mix_blocks are for shuffle='block'"),
    ({"shuffle": "block", "block_bytes": 0}, ValueError, "block_bytes is 0"),
    ({"shuffle": "block", "block_bytes": "4MiB"}, TypeError, "block_bytes"),
    ({"shuffle": "block", "mix_blocks": 1 << 17}, ValueError, "mix_blocks .* 65536"),
    ({"seed": -1}, ValueError, "seed"),
    ({"seed": 1 << 64}, ValueError, "seed"),
    ({"seed": "0"}, TypeError, "seed"),
    ({"seed": True}, TypeError, "seed"),
    ({"batch_size": 0}, ValueError, "batch_size"),
    ({"batch_size": 1.5}, TypeError, "batch_size"),
    ({"tail": "long"}, ValueError, "'pad'"),
    ({"tail": "pad", "drop_last": True}, ValueError, "contradict"),
    ({"rank": 1}, ValueError, "both"),
    ({"rank": 2, "world_size": 2}, ValueError, "rank"),
    ({"rank": 0, "world_size": 0}, ValueError, "world_size"),
]


@pytest.mark.parametrize(("change", "error", "text"), DATA_SET + ITERABLE)
def test_iterable(hundred: Folder, change: dict[str, Any], error: type[Exception], text: str) -> None:
    arguments = {"source": hundred.uri, **change}
    with pytest.raises(error, match=text):
        millrace.IterableDataset(**arguments)


@pytest.mark.parametrize(("change", "error", "text"), DATA_SET)
def test_map(hundred: Folder, change: dict[str, Any], error: type[Exception], text: str) -> None:
    arguments = {"source": hundred.uri, **change}
    with pytest.raises(error, match=text):
        millrace.MapDataset(**arguments)


def test_scheme_that_there_is_not(socket: str) -> None:
    with pytest.raises(ValueError, match="ftp"):
        len(millrace.MapDataset("ftp://host/x"))


def test_calls(socket: str, hundred: Folder) -> None:
    ds = millrace.IterableDataset(hundred.uri)
    with pytest.raises(ValueError, match="batch size"):
        ds.batches()
    with pytest.raises(ValueError, match="batch_size"):
        ds.batches(0)
    with pytest.raises(ValueError, match="epoch"):
        ds.set_epoch(-1)
    with pytest.raises(TypeError, match="epoch"):
        ds.set_epoch("1")  # type: ignore[arg-type]


LOADER: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("iterable", {"batch_size": 0}, ValueError, "batch_size"),
    ("iterable", {"batch_size": "8"}, TypeError, "batch_size"),
    ("iterable", {"drop_last": 1}, TypeError, "drop_last"),
    ("iterable", {"tail": "long"}, ValueError, "tail"),
    ("iterable", {"tail": "pad", "drop_last": True}, ValueError, "contradict"),
    ("iterable", {"shuffle": True}, ValueError, "IterableDataset"),
    ("iterable", {"seed": 1}, ValueError, "IterableDataset"),
    ("iterable", {"block_bytes": 1}, ValueError, "IterableDataset"),
    ("iterable", {"mix_blocks": 1}, ValueError, "IterableDataset"),
    ("iterable", {"rank": 0, "world_size": 1}, ValueError, "IterableDataset"),
    ("iterable", {"sampler": [1]}, ValueError, "sampler"),
    ("iterable", {"num_workers": -1}, ValueError, "num_workers"),
    ("iterable", {"persistent_workers": True}, ValueError, "num_workers"),
    ("iterable", {"prefetch_factor": 2}, ValueError, "num_workers"),
    ("iterable", {"in_order": False, "num_workers": 1}, ValueError, "order"),
    ("iterable", {"nonsense": 1}, TypeError, "nonsense"),
    ("map", {"sampler": [1], "shuffle": True}, ValueError, "shuffle"),
    ("map", {"sampler": [1], "shuffle": "block"}, ValueError, "shuffle"),
    ("map", {"sampler": [1], "mix_blocks": 2}, ValueError, "block_bytes and mix_blocks are for shuffle='block'"),
    ("map", {"shuffle": "blocks"}, ValueError, "'block'"),
    ("map", {"shuffle": "block", "block_bytes": -1}, ValueError, "block_bytes"),
    ("map", {"sampler": [1], "seed": 1}, ValueError, "own order"),
    ("map", {"sampler": [1], "rank": 0, "world_size": 1}, ValueError, "sampler"),
    ("map", {"batch_sampler": [[1]], "batch_size": 2}, ValueError, "mutually exclusive"),
    ("map", {"seed": -1}, ValueError, "seed"),
    ("map", {"rank": 3, "world_size": 2}, ValueError, "rank"),
]


@pytest.mark.parametrize(("kind", "arguments", "error", "text"), LOADER)
def test_loader(
    socket: str, hundred: Folder, kind: str, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    ds: Any = millrace.IterableDataset(hundred.uri) if kind == "iterable" else millrace.MapDataset(hundred.uri)
    with pytest.raises(error, match=text):
        millrace.DataLoader(ds, collate_fn=keep, **arguments)


def test_loader_of_something_else() -> None:
    with pytest.raises(TypeError, match="not list"):
        millrace.DataLoader([1, 2, 3])  # type: ignore[arg-type]


def test_loader_calls(socket: str, hundred: Folder) -> None:
    loader = millrace.DataLoader(millrace.IterableDataset(hundred.uri))
    with pytest.raises(ValueError, match="epoch"):
        loader.set_epoch(-1)
    with pytest.raises(TypeError, match="epoch"):
        loader.set_epoch(1.5)  # type: ignore[arg-type]


def test_the_module_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        millrace.nonsense  # noqa: B018
    assert set(millrace.__all__) <= set(dir(millrace)) | {"DataLoader"}


@pytest.mark.parametrize("name", ["Lease", "Lane", "Writer", "RangeReader"])
def test_classes_of_the_extension_are_not_called(name: str) -> None:
    from millrace import _ring

    with pytest.raises(TypeError, match=f"{name} is not made by calling it"):
        getattr(_ring, name)()


def test_paths_of_uris() -> None:
    uris = ("gs://bucket/name.tar", "s3://bucket", "s3+other://bucket/a", "file:///data/a")
    assert _arguments.uris([Path(uri) for uri in uris], True) == uris
