"""Refuses an interpreter that the extension is not written for."""

import sys

if "t" in getattr(sys, "abiflags", ""):
    raise ImportError(
        f"millrace does not work with the free-threaded build of CPython ({sys.executable}): its extension counts on "
        f"the global interpreter lock. Use the ordinary build, python{sys.version_info[0]}.{sys.version_info[1]}"
    )
