"""What both kinds of drop-in data sets share: the reference's attributes, and its list of objects.

A drop-in data set holds a data set of millrace's rather than being one: programs subclass it, and whatever they call
their own attributes (batch_size, rank, _transform, ...) must change nothing here. What it needs has these names:
_millrace, _together, _listed, _is_planned.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, ClassVar, TypeVar

from .._connection import Source
from .._dataset import Reported, check_own
from .._supervisor import connection
from . import _config, _google, _read
from ._config import BaseConfig
from ._format import Alone, Format
from .dataflux_core.download import DataFluxDownloadOptimizationParams

Pair = tuple[str, int]
D = TypeVar("D", bound="DropIn")


def data_format_default(data: bytes) -> Any:
    """What a sample is without a data_format_fn: its bytes."""
    return data


class _Objects:
    """`.objects`: a list that is made when it is first used, out of the index that all processes of a node share."""

    def __get__(self, dataset: Any, owner: Any = None) -> Any:
        if dataset is None:
            return self
        objects = _read.pairs(dataset._listed)
        dataset.__dict__["objects"] = objects  # from here on that list counts
        return objects


class DropIn(Reported):
    """Lists when it is made, as the reference does."""

    config_class: ClassVar[type[BaseConfig]]
    project_name: Any
    bucket_name: str
    config: BaseConfig
    data_format_fn: Callable[[bytes], Any]
    objects: Any = _Objects()
    storage_client: Any = None
    _listed: Source
    _millrace: Any

    def __init__(
        self,
        project_name: Any,
        bucket_name: str,
        config: BaseConfig | None,
        data_format_fn: Callable[[bytes], Any],
        storage_client: Any,
    ) -> None:
        super().__init__()
        chosen = self.config_class() if config is None else config
        if not isinstance(chosen, BaseConfig):
            raise TypeError(
                f"config is a Config of millrace.dataflux, not {type(chosen).__module__}.{type(chosen).__name__}"
            )
        if not callable(data_format_fn):
            raise TypeError(f"data_format_fn is a function, not {type(data_format_fn).__name__}")
        self.project_name, self.bucket_name = project_name, bucket_name
        self.config, self.data_format_fn = chosen, data_format_fn
        self.storage_client = storage_client
        settings = _config.settings(chosen, storage_client)
        uri = _config.uri(bucket_name, chosen)
        self._listed = Source(connection(settings), None, (uri,), format="objects", anew=True)
        with _google.errors(of_listing=True):
            if _read.has_folders(self._listed):
                self.objects = _read.pairs(self._listed)
        self.dataflux_download_optimization_params = DataFluxDownloadOptimizationParams(
            max_composite_object_size=chosen.max_composite_object_size
        )
        self.dataflux_download_optimization_params._listed = self._listed

    def __getstate__(self) -> dict[str, Any]:
        """Without storage_client, which cannot be pickled: what its settings were is in the listing."""
        return {name: value for name, value in self.__dict__.items() if name != "storage_client"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __reduce__(self) -> tuple[Any, ...]:
        return _empty, (type(self),), self.__getstate__()

    def _count(self) -> int:
        objects = self.__dict__.get("objects")
        return len(self._listed.index() if objects is None else objects)

    def _numbers(self, positions: Iterable[Any]) -> list[int] | None:
        """The numbers of these of `.objects` in the listing; None where one is not in it."""
        objects = self.__dict__.get("objects")
        if objects is None:
            return [operator.index(position) for position in positions]
        index = self._listed.index()
        try:
            return [index.find(objects[position][0]) for position in positions]
        except KeyError:
            return None

    def _read(self, positions: Sequence[Any]) -> Iterator[Any]:
        """The samples of these of `.objects`, in this order."""
        own, format_one = self._millrace, self._format(positions)
        source = _read.Reading(self._listed, format_one, own._on_error, own._window, own._writable)
        objects = self.__dict__.get("objects")
        if objects is None:
            return source.numbered(positions)
        return source.named(self.bucket_name, (objects[position][0] for position in positions))

    def _formatted(self) -> Any:
        """For reading any of `.objects`, each by itself."""
        self._millrace._transform = self._format(None)
        return self._millrace

    def _format(self, positions: Sequence[Any] | None) -> Format:
        """For reading these of `.objects`; None: any, each by itself."""
        limit = self.dataflux_download_optimization_params.max_composite_object_size
        if positions is None or len(positions) == 1 or limit == 0:
            return Format(self.data_format_fn)
        threads = getattr(self.config, "threads_per_process", 1)
        objects = self._listed.index() if self.__dict__.get("objects") is None else self.objects
        return Format(self.data_format_fn, Alone(lambda: [objects[each] for each in positions], limit, threads))

    def _check_own(self, cls: type, *methods: str) -> None:
        """What a subclass or its user has changed here, millrace's own data set would not do."""
        check_own(self, cls, *methods)
        objects = self.__dict__.get("objects")
        if objects is not None and objects != self._listed.index()[:]:
            raise ValueError(
                "objects is not what was listed any more, and millrace.DataLoader reads what was listed: take "
                "torch.utils.data.DataLoader, or millrace.MapDataset.from_objects"
            )


def _empty(cls: type[D]) -> D:
    return object.__new__(cls)
