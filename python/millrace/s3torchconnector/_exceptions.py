"""S3Exception, and millrace's errors as programs for s3torchconnector catch them."""

from __future__ import annotations

from types import TracebackType

from .._errors import ChangedError, Error, SupervisorGone, from_code
from .._ring import Failure


class S3Exception(Exception):
    """A request failed. Each is one of Python's or millrace's exceptions as well: FileNotFoundError, PermissionError,
    millrace.Error, ..."""


class NotFound(FileNotFoundError, S3Exception):
    """There is no such object, or no such bucket."""


class Forbidden(PermissionError, S3Exception):
    """The credentials may not do it, or there are none."""


class Changed(ChangedError, S3Exception):
    """The object is not the one that was listed."""


class Gone(SupervisorGone, S3Exception):
    """The supervisor has ended."""


class Failed(Error, S3Exception):
    """Anything else."""


_ALSO: tuple[tuple[type[Exception], type[S3Exception]], ...] = (
    (FileNotFoundError, NotFound),
    (PermissionError, Forbidden),
    (ChangedError, Changed),
    (SupervisorGone, Gone),
    (Error, Failed),
)
# As s3torchconnector says it, which programs look for: where an object is read, and where it is looked up.
NO_KEY = "Service error: The key does not exist: "
NO_OBJECT = "Service error: The object was not found: "

S3Exception.__module__ = "millrace.s3torchconnector"  # what a traceback shows


def s3_exception(error: Exception, not_found: str = NO_KEY) -> Exception:
    """The same error, which `except S3Exception` catches as well; ValueError and what is not of a store stay."""
    if isinstance(error, S3Exception):
        return error
    for own, also in _ALSO:
        if isinstance(error, own):
            text = str(error)
            is_bucket = "bucket does not exist" in text.lower() or "nosuchbucket" in text.lower()
            made: Exception = also(text if is_bucket or also is not NotFound else not_found + text)
            return made
    return error


def of_failure(failure: Failure) -> Exception:
    return s3_exception(from_code(failure.code, failure.text))


class _Errors:
    """`with errors:` gives each error of millrace in the block its S3Exception."""

    def __init__(self, not_found: str) -> None:
        self._not_found = not_found

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            made = s3_exception(error, self._not_found)
            if made is not error:
                raise made from error


errors = _Errors(NO_KEY)
look_up_errors = _Errors(NO_OBJECT)
