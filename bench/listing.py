from __future__ import annotations
BUCKET = "bench-names"
def measure(*a): return {}
