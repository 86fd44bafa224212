"""On the path of both sides: the connector has no variable for an endpoint, and the server here is none of AWS's."""

import builtins
import os
import sys
from typing import Any

_import = builtins.__import__
_NAME = "s3torchconnector._s3client._s3client"


def _with_endpoint(module: Any) -> None:
    begin, config_of = module.S3Client.__init__, module.S3ClientConfig

    def init(self: Any, region: str, *, endpoint: Any = None, s3client_config: Any = None, **more: Any) -> None:
        config = s3client_config or config_of(force_path_style=True)
        begin(self, region, endpoint=endpoint or URL, s3client_config=config, **more)

    module.S3Client.__init__ = init


def _watched(name: str, *arguments: Any, **more: Any) -> Any:
    found = _import(name, *arguments, **more)
    module = sys.modules.get(_NAME)
    if module is not None and hasattr(module, "S3Client"):
        builtins.__import__ = _import
        _with_endpoint(module)
    return found


URL = os.environ.get("MR_CONTROL_ENDPOINT")
if URL:
    builtins.__import__ = _watched
