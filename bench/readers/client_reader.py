"""Object-store clients that know no data sets: google-cloud-storage, gcsfs, obstore.

Each gets a batch of names and answers with their bytes, with up to --parallel requests under way, in the way that
its own documentation gives: google-cloud-storage by threads (by a plain loop for 1), gcsfs by `cat` of a list,
obstore by asyncio. In torch's DataLoader the same function is the data set's __getitems__.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

from bench.readers import common

Sample = tuple[str, bytes]
Fetch = Callable[[Sequence[str]], "list[Sample]"]
Client = Callable[[str, int], Fetch]  # of a bucket, with so many requests under way


def by_threads(get: Callable[[str], bytes], parallel: int) -> Fetch:
    """A plain loop for 1."""
    if parallel == 1:
        return lambda names: [(name, get(name)) for name in names]
    pool = ThreadPoolExecutor(parallel)
    return lambda names: list(zip(names, pool.map(get, names)))


def by_cat(files: Any, bucket: str, parallel: int) -> Fetch:
    """An fsspec file system's."""

    def fetch(names: Sequence[str]) -> list[Sample]:
        paths = [f"{bucket}/{name}" for name in names]
        if len(paths) == 1:
            return [(names[0], files.cat_file(paths[0]))]
        data = files.cat(paths, batch_size=parallel)
        return [(name, data[path]) for name, path in zip(names, paths)]

    return fetch


def by_asyncio(store: Any, parallel: int) -> Fetch:
    """A store of obstore."""
    loop = asyncio.new_event_loop()

    async def get(name: str) -> Sample:
        response = await store.get_async(name)
        return name, await response.bytes_async()

    async def fetch(names: Sequence[str]) -> list[Sample]:
        return list(await asyncio.gather(*map(get, names)))

    def gather(names: Sequence[str]) -> list[Sample]:
        found: list[Sample] = []
        for some in common.groups(names, parallel):
            found += loop.run_until_complete(fetch(some))
        return found

    return gather


def google(bucket: str, parallel: int) -> Fetch:
    import requests.adapters
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    client = storage.Client(project="bench", credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]
    adapter = requests.adapters.HTTPAdapter(pool_connections=1, pool_maxsize=parallel)
    client._http.mount("http://", adapter)  # as its documentation says for more than 10 threads
    handle = client.bucket(bucket)

    return by_threads(lambda name: handle.blob(name).download_as_bytes(), parallel)


def gcsfs(bucket: str, parallel: int) -> Fetch:
    import gcsfs as module

    files = module.GCSFileSystem(
        token="anon",
        endpoint_url=os.environ["STORAGE_EMULATOR_HOST"],
        skip_instance_cache=True,
    )
    return by_cat(files, bucket, parallel)


def obstore_store(bucket: str) -> Any:
    from obstore.store import GCSStore

    key = {"gcs_base_url": os.environ["STORAGE_EMULATOR_HOST"], "disable_oauth": True}
    key.update(client_email="", private_key="", private_key_id="")
    return GCSStore(bucket, service_account_key=json.dumps(key), client_options={"allow_http": True})


def obstore(bucket: str, parallel: int) -> Fetch:
    return by_asyncio(obstore_store(bucket), parallel)


CLIENTS = {"google": google, "gcsfs": gcsfs, "obstore": obstore}


class Names:
    """A map-style data set. The client is made in the process that uses it."""

    def __init__(self, client: Client, bucket: str, parallel: int, names: list[str]) -> None:
        self.client, self.bucket, self.parallel, self.names = client, bucket, parallel, names
        self.fetch: Fetch | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        if self.fetch is None:
            self.fetch = self.client(self.bucket, self.parallel)
        # A DataLoader sends bytes: obstore's own buffer does not pickle.
        return [(name, bytes(data)) for name, data in self.fetch([self.names[i] for i in indices])]


def arguments(clients: Iterable[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--client", choices=sorted(clients), required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    return parser.parse_args()


def serve(client: Client, options: argparse.Namespace) -> None:
    names = common.made_up_names(options.count)
    if options.workers:
        from torch.utils.data import DataLoader

        dataset: Any = Names(client, options.bucket, options.parallel, names)
        loader = DataLoader(dataset, batch_size=options.batch, num_workers=options.workers, collate_fn=list)
        batches = common.forever(lambda: loader)
    else:
        fetch = client(options.bucket, options.parallel)
        batches = common.forever(lambda: map(fetch, common.groups(names, options.batch)))
    next(batches)
    common.serve(batches)


if __name__ == "__main__":
    asked = arguments(CLIENTS)
    serve(CLIENTS[asked.client], asked)
