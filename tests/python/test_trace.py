"""NVTX ranges: around what, when, and in balance. The spans themselves: tests/cli/test_trace.py."""

from __future__ import annotations

import logging
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from millrace import _trace


class Nvtx:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def range_push(self, name: str) -> None:
        self.calls.append(name)

    def range_pop(self) -> None:
        self.calls.append("end")


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvtx]:
    """A torch that has CUDA, as far as this asks; nothing is said in the environment."""
    made = Nvtx()
    for name in ("MILLRACE_NVTX", "NSYS_PROFILING_SESSION_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "nvtx", made)
    _trace.nvtx.cache_clear()
    yield made
    _trace.nvtx.cache_clear()


def spans() -> None:
    with _trace.span("outer"):
        assert _trace.transformed(len, "four", 3) == 4


def test_none_without_a_word(nvtx: Nvtx) -> None:
    spans()
    assert nvtx.calls == []


@pytest.mark.parametrize("name", ["MILLRACE_NVTX", "NSYS_PROFILING_SESSION_ID"])
def test_where_they_are_wanted(nvtx: Nvtx, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    spans()
    assert nvtx.calls == ["outer", "millrace: transform", "end", "end"]


def test_a_transform_that_fails(nvtx: Nvtx, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(item: Any) -> Any:
        raise KeyError(item)

    monkeypatch.setenv("MILLRACE_NVTX", "1")
    with pytest.raises(KeyError):
        _trace.transformed(fail, "four", 3)
    assert nvtx.calls == ["millrace: transform", "end"]


def test_never(nvtx: Nvtx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    monkeypatch.setenv("MILLRACE_NVTX", "0")
    spans()
    assert nvtx.calls == []


def test_a_torch_without_cuda(nvtx: Nvtx, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(torch, "version", types.SimpleNamespace(cuda=None))
    monkeypatch.setenv("MILLRACE_NVTX", "1")
    with caplog.at_level(logging.WARNING, "millrace"):
        spans()
    assert nvtx.calls == []
    assert "MILLRACE_NVTX=1 has no effect: this torch has no CUDA" in caplog.text


def test_spans_cost_nothing_to_whom_nobody_traces() -> None:
    assert _trace.tracing() is False
    _trace.trace("transform", 0)
    with pytest.raises(ValueError, match="no kind of span nonsense"):
        _trace.trace("nonsense", 0)
