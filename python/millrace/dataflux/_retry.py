"""What a google.api_core Retry says, as [retry] of millrace's configuration."""

from __future__ import annotations

import functools
import sys
from typing import Any

DAY_S = 86_400
MAX_ATTEMPTS = 1000


class Default:
    """Stands for "not given": millrace's own settings."""

    def __repr__(self) -> str:
        return "<millrace's own>"

    def __reduce__(self) -> str:
        return "DEFAULT"


DEFAULT = Default()


@functools.cache
def modified(deadline_s: float, multiplier: float, maximum_s: float) -> Any:
    """The Retry that the reference takes where none is given; here it stands for millrace's own settings too.

    Without google-cloud-storage, which millrace does not need, it is DEFAULT.
    """
    try:
        from google.cloud.storage.retry import DEFAULT_RETRY
    except ModuleNotFoundError:
        return DEFAULT
    made = DEFAULT_RETRY.with_timeout(deadline_s).with_delay(initial=1.0, multiplier=multiplier, maximum=maximum_s)
    _made.append(made)
    return made


_made: list[Any] = []


def of_data_sets() -> Any:
    return modified(100_000.0, 1.5, 30.0)


def of_core() -> Any:
    return modified(300.0, 1.2, 45.0)


class Field:
    """A field that reads as the reference's default while nothing is stored; Google's library is loaded when it is."""

    def __get__(self, config: Any, owner: Any = None) -> Any:
        return self if config is None else of_data_sets()


def settings(field: str, retry: Any) -> dict[str, int] | None:
    """The keys of [retry]; None where nothing was given. ValueError or TypeError for what millrace cannot do."""
    if retry is DEFAULT or any(retry is each for each in _made):
        return None
    if retry is None:  # google-cloud-storage's way of saying "never again"
        return {"attempts": 1, "deadline_ms": 100}
    module = sys.modules.get("google.api_core.retry")
    if module is None or not isinstance(retry, module.Retry):
        kind = f"{type(retry).__module__}.{type(retry).__qualname__}"
        raise TypeError(f"{field} is a google.api_core.retry.Retry or None, not {kind}")
    if retry._on_error is not None:
        raise ValueError(f"{field} has an on_error function: millrace's workers are C programs and cannot call it")
    if not _is_usual(retry._predicate, module):
        raise ValueError(
            f"{field} has a predicate of its own: millrace's workers are C programs and cannot call it; they repeat "
            "requests after network errors and status 408, 429 and 5xx. Take google.cloud.storage.retry.DEFAULT_RETRY, "
            "with_delay and with_timeout"
        )
    timeout = getattr(retry, "_timeout", None)  # the name since google-api-core 2.9
    if timeout is None:
        timeout = getattr(retry, "_deadline", None)
    return {
        "attempts": MAX_ATTEMPTS,  # a Retry has no limit but time
        "base_ms": _ms(field, "initial", retry._initial, 60),
        "cap_ms": _ms(field, "maximum", retry._maximum, 3600),
        "deadline_ms": max(100, _ms(field, "timeout", DAY_S if timeout is None else timeout, DAY_S)),
    }


def _is_usual(predicate: Any, module: Any) -> bool:
    """Whether it is Google's own choice of errors: that of the storage library, or of Retry()."""
    usual = [module.if_transient_error]
    storage = sys.modules.get("google.cloud.storage.retry")
    if storage is not None:
        usual.append(storage.DEFAULT_RETRY._predicate)
    return any(predicate is each for each in usual)


def _ms(field: str, name: str, seconds: Any, most_s: int) -> int:
    try:
        value = float(seconds)
    except (TypeError, ValueError):
        raise TypeError(f"{field}: {name} is a number of seconds, not {seconds!r}") from None
    if not value >= 0:
        raise ValueError(f"{field}: {name} is {value}, it must not be negative")
    return max(1, round(min(value, most_s) * 1000))
