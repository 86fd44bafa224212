"""Object-store clients, each in the way that its own documentation gives for a file object, at its defaults."""

from __future__ import annotations

import argparse
import io
import os
import tempfile
from pathlib import Path
from typing import Any, Callable

import torch

from bench.checkpoint.common import Saver, State, Wait, serve
from bench.readers.client_reader import obstore_store


def google_client() -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    return storage.Client(project="bench", credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]


class Google(Saver):
    """The whole checkpoint in a BytesIO, sent and fetched in one piece."""

    def __init__(self, bucket: str) -> None:
        self.bucket = google_client().bucket(bucket)

    def save(self, name: str, state: State) -> Wait:
        data = io.BytesIO()
        torch.save(state, data)
        self.bucket.blob(name).upload_from_file(data, rewind=True)
        return None

    def load(self, name: str) -> State:
        data = io.BytesIO()
        self.bucket.blob(name).download_to_file(data)
        data.seek(0)
        found: State = torch.load(data)
        return found


class GoogleChunks(Saver):
    """Its transfer manager, which takes files only: by way of a file, in chunks by worker processes (its default)."""

    def __init__(self, bucket: str, folder: Path) -> None:
        self.bucket, self.folder = google_client().bucket(bucket), folder

    def save(self, name: str, state: State) -> Wait:
        from google.cloud.storage import transfer_manager

        with tempfile.NamedTemporaryFile(dir=self.folder) as file:
            torch.save(state, file)
            file.flush()
            transfer_manager.upload_chunks_concurrently(file.name, self.bucket.blob(name))
        return None

    def load(self, name: str) -> State:
        from google.cloud.storage import transfer_manager

        with tempfile.NamedTemporaryFile(dir=self.folder) as file:
            transfer_manager.download_chunks_concurrently(self.bucket.blob(name), file.name)
            found: State = torch.load(file.name)
        return found


class Gcsfs(Saver):
    def __init__(self, bucket: str) -> None:
        import gcsfs

        self.bucket = bucket
        self.files = gcsfs.GCSFileSystem(token="anon", endpoint_url=os.environ["STORAGE_EMULATOR_HOST"])

    def save(self, name: str, state: State) -> Wait:
        with self.files.open(f"{self.bucket}/{name}", "wb") as file:
            torch.save(state, file)
        return None

    def load(self, name: str) -> State:
        with self.files.open(f"{self.bucket}/{name}", "rb") as file:
            found: State = torch.load(file)
        self.files.invalidate_cache()
        return found


class Copying:
    """torch uses a buffer again after write() has returned, and obstore's writer keeps it: it gets a copy."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def write(self, data: memoryview) -> int:
        self.writer.write(bytes(data))
        return len(data)

    def flush(self) -> None:
        self.writer.flush()


class Reading(io.RawIOBase):
    """torch wants bytes, and obstore's reader gives a type of its own."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        at: int = self.reader.seek(offset, whence)
        return at

    def tell(self) -> int:
        at: int = self.reader.tell()
        return at

    def readinto(self, into: Any) -> int:
        data = memoryview(self.reader.read(len(into)))
        into[: len(data)] = data
        return len(data)


class Obstore(Saver):
    def __init__(self, bucket: str) -> None:
        self.store = obstore_store(bucket)

    def save(self, name: str, state: State) -> Wait:
        import obstore

        with obstore.open_writer(self.store, name) as writer:
            torch.save(state, Copying(writer))  # type: ignore[arg-type]
        return None

    def load(self, name: str) -> State:
        import obstore

        found: State = torch.load(io.BufferedReader(Reading(obstore.open_reader(self.store, name))))
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--client", choices=["google", "google-chunks", "gcsfs", "obstore"], required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    bucket = options.bucket
    clients: dict[str, Callable[[], Saver]] = {
        "google": lambda: Google(bucket),
        "google-chunks": lambda: GoogleChunks(bucket, options.folder),
        "gcsfs": lambda: Gcsfs(bucket),
        "obstore": lambda: Obstore(bucket),
    }
    serve(clients[options.client]())


if __name__ == "__main__":
    main()
