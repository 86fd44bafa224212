"""The names of the client library dataflux_core over millrace: fast_list, download, user_agent.

`import millrace.dataflux.install` makes them importable as `dataflux_core` where that package is absent.
"""

from . import download, fast_list, user_agent

__all__ = ["download", "fast_list", "user_agent"]
