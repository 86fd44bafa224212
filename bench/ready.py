"""How long next() takes for a sample that has been fetched already."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bench.process import Failed, Process
from bench.systems import BIN, BUILD, Cell, System


def measure(url: str, cell: Cell, folder: Path) -> dict[str, Any]:
    config = folder / "ready.toml"
    config.write_text('[memory]\narena_bytes = "256MiB"\n')
    command = [str(BIN / "millrace"), "run", "-q", "-c", str(config), "--", sys.executable]
    command += ["-m", "bench.readers.ready_reader", "--bucket", cell.shape.bucket]
    process = Process(
        System("ready", "", 0, command, 0, {"PYTHONPATH": str(BUILD / "python")}), url, folder / "ready.log"
    )
    try:
        process.answer(60)
        return process.command({}, 120)
    except Failed as error:
        return {"error": str(error)}
    finally:
        process.end()
