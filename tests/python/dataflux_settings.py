"""What a Config and a client of dataflux ask a supervisor for, as TOML."""

from __future__ import annotations

from typing import Any

from millrace.dataflux import _config
from millrace.dataflux.dataflux_mapstyle_dataset import Config

OTHERS = ", ".join(f'"{each}"' for each in _config.STORAGE_CLASSES[1:])
STANDARD = f"[list]\nexclude_classes = [{OTHERS}]\n"
COMPOSED = '[fetch]\ncompose = "auto"\n'
AS_IT_IS = (STANDARD + COMPOSED, (), ())


def toml(config: Any = None, client: Any = None) -> str:
    """What is asked for beside composing and the storage class."""
    return _config.settings(config or Config(), client).toml.replace(COMPOSED, "").replace(STANDARD, "")
