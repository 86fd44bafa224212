"""In place of the unit tests' own fake of google-cloud-storage, which has no server: Google's client, and the store of
the run behind it. What the tests put into the fake is put into that store, so millrace finds it there."""

from __future__ import annotations

from typing import Any

from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage


class Bucket(storage.Bucket):  # type: ignore[misc]
    """A bucket that is made on first use; `Bucket(name)` alone is the tests' way to begin with an empty one."""

    def __init__(self, client: Any, name: str | None = None) -> None:
        if isinstance(client, str):
            client, name = Client(), client
            emptied = True
        else:
            emptied = False
        super().__init__(client, name)
        try:
            client.create_bucket(name)
        except exceptions.Conflict:
            for blob in list(client.list_blobs(name)) if emptied else []:
                blob.delete()

    def _add_file(self, name: str, content: str) -> None:
        self.blob(name).upload_from_string(content)


class Client(storage.Client):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(project="foo", credentials=AnonymousCredentials())

    def bucket(self, name: str, *arguments: Any, **keywords: Any) -> Bucket:
        return Bucket(self, name)

    def _set_perm(self, permissions: list[str], bucket: str) -> None:
        """The store grants everything."""
