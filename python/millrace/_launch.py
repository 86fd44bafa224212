"""The console script of an installed wheel: replaces itself by the native program that the wheel carries."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    program = Path(__file__).with_name("bin") / "millrace"
    try:
        os.execv(program, [str(program), *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"millrace: cannot start {program}: {error.strerror}: reinstall the package")
