"""What the reference's checkpoint classes have in common: a project and a storage_client."""

from __future__ import annotations

from typing import Any

from .._supervisor import prefer
from ..checkpoint._writer import WAIT_S, Writer, opened_writer
from . import _config, _google


class ClientHolder:
    """`project_name` and `storage_client`, of which the same things are taken over as for data sets."""

    project_name: Any
    _client: Any = None

    def _take_client(self, project_name: Any, storage_client: Any) -> None:
        self.project_name = project_name
        self._settings = _config.client_settings(storage_client)
        self._client = storage_client

    @property
    def storage_client(self) -> Any:
        """The client that was given, or else a new one of the project. millrace itself does not use it."""
        if self._client is None:
            from google.cloud import storage

            self._client = storage.Client(project=self.project_name)
        return self._client

    @storage_client.setter
    def storage_client(self, client: Any) -> None:
        self._take_client(self.project_name, client)

    def _prefer(self) -> None:
        """Asks for a supervisor with the client's settings: before each use, since unpickling does not count as one."""
        prefer(self._settings)

    def __getstate__(self) -> dict[str, Any]:
        above: Any = getattr(super(), "__getstate__", None)  # object has one since Python 3.11
        state = dict(self.__dict__ if above is None else above() or {})
        state.pop("_client", None)  # no client can be pickled
        return state


class _Writer(Writer):
    """What it raises for a missing or denied bucket, Google's NotFound and Forbidden catch as well."""

    def write(self, data: Any, /) -> int:
        with _google.errors():
            return super().write(data)

    def close(self, wait: bool = True) -> Any:
        with _google.errors():
            return super().close(wait)

    def _cause(self, error: BaseException) -> Exception:
        return _google.translated(super()._cause(error))


def writer(uri: str) -> Writer:
    """As millrace.checkpoint.writer()."""
    with _google.errors():
        return opened_writer(uri, False, None, WAIT_S, kind=_Writer)
