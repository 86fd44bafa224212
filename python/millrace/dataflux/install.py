"""`import millrace.dataflux.install` makes `dataflux_core` importable for programs that name it.

Only where the package itself is absent: one that is installed is what a program means.
"""

from __future__ import annotations

import importlib.util
import sys

from . import dataflux_core

if "dataflux_core" not in sys.modules and importlib.util.find_spec("dataflux_core") is None:
    for _name in ("download", "fast_list", "user_agent"):
        sys.modules[f"dataflux_core.{_name}"] = getattr(dataflux_core, _name)
    sys.modules["dataflux_core"] = dataflux_core
