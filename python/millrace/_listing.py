"""The progress that is shown while a process waits for a listing."""

from __future__ import annotations

import logging
import os
import sys
import time

from . import _torch

log = logging.getLogger("millrace")
LOG_EVERY_S = 5.0
SHOW_EVERY_S = 0.5


class ListingProgress:
    """A line on a terminal, twice a second, or a log line every few seconds; nothing about a listing that is short.

    Under `millrace run` or `serve` the supervisor shows the line on the terminal, so that it is not shown here.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._began = self._updated = time.monotonic()
        self._shown = 0
        first = os.environ.get("LOCAL_RANK", "0") == "0" and _torch.worker() is None
        self._terminal = first and not os.environ.get("MILLRACE_SOCKET") and sys.stderr.isatty()

    def update(self, objects: int, requests: int) -> None:
        now = time.monotonic()
        if now - self._updated < (SHOW_EVERY_S if self._terminal else LOG_EVERY_S):
            return
        self._updated = now
        rate = objects / (now - self._began)
        text = f"listing {self._label}: {objects:,} objects so far, {rate:,.0f}/s, {requests:,} requests"
        if self._terminal:
            self._show(text)
        else:
            log.info("%s", text)

    def close(self) -> None:
        """Takes the line off the terminal."""
        if self._shown:
            self._show("")

    def _show(self, text: str) -> None:
        text = text[:200]
        sys.stderr.write(f"\r{text:<{self._shown}}\r")
        sys.stderr.flush()
        self._shown = len(text)
