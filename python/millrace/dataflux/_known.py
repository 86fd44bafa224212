"""What the functions of dataflux_core leave behind for the next call: they have no data set that would keep it."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

from .._connection import Connection, Source, connect
from .._errors import SupervisorGone
from .._supervisor import Settings, connection
from . import _config

MOST = 16

_listings: deque[tuple[str, object, Source]] = deque(maxlen=MOST)  # bucket, whose credentials, the listing
_connections: dict[object, Connection] = {}  # by settings; a private supervisor ends with its last one


def connection_for(settings: Settings) -> Connection:
    """Such programs call them in DataLoader workers too: there it is the parent's supervisor, where it has one."""
    known = _connections.get(settings.key)
    if known is not None and not known.is_ours():
        with contextlib.suppress(SupervisorGone):
            _connections[settings.key] = connect(known.path, 0)
            return _connections[settings.key]
    found = connection(settings, "a call of dataflux_core", in_worker=True)
    _connections[settings.key] = found
    return found


def keep(bucket: str, storage_client: Any, source: Source) -> None:
    kept = (bucket, _way(storage_client), source)
    for old in list(_listings):  # of the same prefix: it is out of date, and would hold the memory of its names
        if (*old[:2], str(old[2])) == (*kept[:2], str(source)):
            with contextlib.suppress(ValueError):  # another thread has done so
                _listings.remove(old)
    _listings.appendleft(kept)


def listing(bucket: str, storage_client: Any, name: str) -> Source | None:
    """The last listing of the bucket that has this object, through the same credentials."""
    way = _way(storage_client)
    for known_bucket, known_way, source in list(_listings):
        if (known_bucket, known_way) == (bucket, way) and _has(source, name):
            return source
    return None


def forget() -> None:
    """Lets go of everything: private supervisors may end."""
    _listings.clear()
    _connections.clear()


def _way(storage_client: Any) -> object:
    return _config.client_settings(storage_client).key


def _has(source: Source, name: str) -> bool:
    try:
        source.index().find(name)
    except KeyError:
        return False
    return True
