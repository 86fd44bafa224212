"""Lists a bucket once, with names and sizes, and says how many there were."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Callable


def millrace(bucket: str) -> Callable[[], int]:
    import millrace as module

    return lambda: len(module.IterableDataset(f"gs://{bucket}/"))


def dataflux(bucket: str) -> Callable[[], int]:
    from dataflux_core import fast_list

    def listed() -> int:
        processes = os.cpu_count() or 1
        return len(fast_list.ListingController(processes, "bench", bucket).run())

    return listed


def google(bucket: str) -> Callable[[], int]:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    client = storage.Client(project="bench", credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]
    fields = "items(name,size),nextPageToken"
    return lambda: len([(blob.name, blob.size) for blob in client.list_blobs(bucket, fields=fields)])


def gcsfs(bucket: str) -> Callable[[], int]:
    import gcsfs as module

    files = module.GCSFileSystem(token="anon", endpoint_url=os.environ["STORAGE_EMULATOR_HOST"])
    return lambda: len(files.find(bucket, detail=True))


def obstore(bucket: str) -> Callable[[], int]:
    from bench.readers.client_reader import obstore_store

    store = obstore_store(bucket)
    return lambda: sum(len(page) for page in store.list(chunk_size=1000))


SYSTEMS = {"millrace": millrace, "dataflux": dataflux, "google": google, "gcsfs": gcsfs, "obstore": obstore}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--client", choices=sorted(SYSTEMS), required=True)
    parser.add_argument("--bucket", required=True)
    options = parser.parse_args()
    listed = SYSTEMS[options.client](options.bucket)
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.monotonic()
    objects = listed()
    print(json.dumps({"objects": objects, "wall_s": time.monotonic() - begun}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
