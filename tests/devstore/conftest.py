"""Clients of the development store: Google's own, and a bare HTTP connection."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.conftest import Server, StartDevstore
from tests.serve import DEADLINE_S

Connect = Callable[[Server], storage.Client]


@pytest.fixture
def connect() -> Connect:
    """Google's client, talking to the given server without credentials."""

    def start(server: Server) -> storage.Client:
        options = ClientOptions(api_endpoint=server.url)
        return storage.Client(project="test", credentials=AnonymousCredentials(), client_options=options)

    return start


@pytest.fixture
def memory(devstore: StartDevstore) -> Iterator[Server]:
    """A store in memory with no bucket."""
    yield devstore("--memory")


@dataclass
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes
    broken: Exception | None = None
    """What ended the body before its time."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def fetch(
    server: Server,
    target: str,
    method: str = "GET",
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    timeout: float = DEADLINE_S,
) -> Reply:
    """One request on a connection of its own; a body that breaks off is kept as far as it came."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout)
    try:
        connection.request(method, target, body=body, headers=headers or {})
        response = connection.getresponse()
        got = b""
        broken: Exception | None = None
        try:
            while piece := response.read1(1 << 16):
                got += piece
            if response.length:
                broken = http.client.IncompleteRead(got, response.length)
        except (OSError, http.client.HTTPException) as error:
            broken = error
        return Reply(response.status, response.headers, got, broken)
    finally:
        connection.close()


def statistics(server: Server) -> Any:
    return fetch(server, "/_devstore/stats").json
