"""Where a checkpoint may lie: URIs and paths, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from millrace import checkpoint
from millrace.checkpoint import _uri


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("gs://bucket/a/b.pt", "gs://bucket/a/b.pt"),
        (Path("gs://bucket/a/b.pt"), "gs://bucket/a/b.pt"),
        ("gs:/bucket/a", "gs://bucket/a"),
        ("file:///a/b", "file:///a/b"),
        (Path("file:///a/b"), "file:///a/b"),
        ("/a/../b/c", "file:///b/c"),
        (Path("/a/b"), "file:///a/b"),
    ],
)
def test_places(given: Any, expected: str) -> None:
    assert _uri.object_uri(given) == expected


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _uri.object_uri("a/b") == f"file://{tmp_path}/a/b"
    assert _uri.to_uri("a/") == f"file://{tmp_path}/a/"
    assert _uri.to_uri("/") == "file:///"


@pytest.mark.parametrize(("given", "level"), [("bucket/a.ckpt", logging.WARNING), ("/a.ckpt", logging.INFO)])
def test_a_local_path_is_said_once(
    given: str, level: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A bucket's path without gs:// is saved on this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_uri, "_said", False)
    caplog.set_level(logging.INFO, "millrace")
    for place in ("gs://bucket/a.ckpt", "file:///a.ckpt", given, given, Path(given)):
        _uri.object_uri(place)
    (said,) = [record for record in caplog.records if "is a file of this machine" in record.message]
    assert said.levelno == level and repr(given) in said.message and str(Path(given).absolute()) in said.message
    assert "an object of a bucket is gs://bucket/name" in said.message


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("s3://bucket", "names no object"),
        (Path("s3:///name"), "names no"),
        ("http://host/name", "http:// is not known"),
        ("gs:///name", "names no bucket"),
        ("gs://bucket", "names no object"),
        ("gs://bucket/", "names no object"),
        ("gs://bucket/folder/", "names no object"),
        ("folder/", "names no object"),
        ("file://relative", "absolute path"),
        ("", "empty"),
        ("gs://bucket/a\nb", "newline"),
    ],
)
def test_places_that_are_refused(given: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        checkpoint.writer(given)
    with pytest.raises(TypeError):
        checkpoint.writer(b"/a/b")  # type: ignore[arg-type]
