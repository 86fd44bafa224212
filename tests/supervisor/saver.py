"""A trainer that tests tell what to do (saver.c), and the bytes that it writes."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from tests.conftest import BIN
from tests.serve import DEADLINE_S

PROGRAM = BIN / "millrace-test-saver"


class Saver:
    """A trainer that is told what to do, line by line (saver.c). Answers are lists of words."""

    def __init__(self, socket: Path | None = None) -> None:
        self.process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if socket:
            self.ok("connect", socket)

    def say(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def hear(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def ask(self, *words: object) -> list[str]:
        self.say(*words)
        return self.hear()

    def ok(self, *words: object) -> list[str]:
        answer = self.ask(*words)
        assert answer[:1] == ["ok"], (words, answer)
        return answer[1:]

    def error(self, *words: object) -> str:
        answer = self.ask(*words)
        assert answer[:1] == ["error"], (words, answer)
        return " ".join(answer[2:])

    def save(self, number: int, uri: str, size: int) -> list[str]:
        """Opens, writes and seals."""
        self.ok("open", number, uri, 0, 1)
        self.ok("write", number, size)
        return self.ok("seal", number)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        if self.process.stdin and not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # it is dead
                self.process.stdin.close()
        self.process.wait(DEADLINE_S)
        if self.process.stdout:
            self.process.stdout.close()


def make_bytes(size: int) -> bytes:
    """What saver.c writes: byte i is mr_mix64(i / 4096) & 255."""
    mask = (1 << 64) - 1
    out = bytearray()
    for block in range((size + 4095) // 4096):
        x = (block + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        out += bytes([(x ^ (x >> 31)) & 255]) * 4096
    return bytes(out[:size])
