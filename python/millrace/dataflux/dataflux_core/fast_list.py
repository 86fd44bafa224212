"""`ListingController`: a bucket's names and sizes, listed by the supervisor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..._arguments import integer
from ..._connection import Source
from .. import _config, _google, _known, _read, _retry
from .._retry import DEFAULT

DEFAULT_ALLOWED_CLASS = ["STANDARD"]


class ListingController:
    """`run()` returns [(name, size), ...] of the objects under a prefix. The parameters are the reference's."""

    def __init__(
        self,
        max_parallelism: int,
        project: Any,
        bucket: str,
        sort_results: bool = False,
        skip_compose: bool = True,
        prefix: str | None = "",
        allowed_storage_classes: Iterable[str] = ("STANDARD",),
        retry_config: Any = DEFAULT,
    ) -> None:
        self.max_parallelism = max_parallelism
        self.gcs_project = project
        self.bucket = bucket
        self.sort_results = sort_results
        self.client: Any = None
        self.skip_compose = skip_compose
        self.prefix = prefix
        self.allowed_storage_classes = allowed_storage_classes
        self.retry_config = retry_config

    def run(self) -> list[tuple[str, int]]:
        """Lists. The result is sorted, asked for or not."""
        if not self.skip_compose:
            raise ValueError(
                "skip_compose=False: a listing of millrace leaves out the temporary objects of composed downloads; "
                "`millrace ls` shows them"
            )
        integer("max_parallelism", self.max_parallelism, 1, 1 << 20)
        config = _config.BaseConfig(
            num_processes=self.max_parallelism,
            prefix=self.prefix,
            disable_compose=True,  # a listing knows nothing of what its downloads may do
            list_retry_config=self.retry_config,
        )
        settings = _config.settings(config, self.client, self.allowed_storage_classes)
        uri = _config.uri(self.bucket, config)
        with _google.errors(of_listing=True):
            source = Source(_known.connection_for(settings), None, (uri,), format="objects", anew=True)
            found = _read.pairs(source)
        _known.keep(self.bucket, self.client, source)
        return found


def __getattr__(name: str) -> Any:
    if name == "MODIFIED_RETRY":
        return _retry.of_core()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
