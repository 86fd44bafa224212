from tests.serve import config, folder, runtime, serve

__all__ = ["config", "folder", "runtime", "serve"]
