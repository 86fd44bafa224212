"""CPU time and memory of a process and all its descendants, as the kernel counts them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
QUIET_S = 0.002  # of CPU in a look, under which a family counts as idle


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name: [0] state, [1] parent, [13] and [14] CPU of reaped children."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def family(root: int) -> list[int]:
    """root and all its living descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int(stat(int(entry.name))[1])
        except (OSError, IndexError, ValueError):
            continue
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found


def process_cpu_s(pid: int) -> float:
    """User and system time of all threads of a process, ended ones too: its clock of clock_getcpuclockid(3)."""
    return time.clock_gettime((~pid << 3) | 2)


@dataclass(frozen=True)
class Family:
    """One root process and its descendants."""

    root: int

    def cpu_s(self) -> float:
        """CPU of all that live, and of those that ended, as their parents count them."""
        total = 0.0
        for pid in family(self.root):
            try:
                fields = stat(pid)
                total += process_cpu_s(pid) + (int(fields[13]) + int(fields[14])) * TICK_S
            except (OSError, IndexError):
                continue
        return total

    def settled_cpu_s(self, limit_s: float) -> float:
        """The same, when nobody in the family works any more: look-ahead that a pause lets run is counted."""
        end = time.monotonic() + limit_s
        last = self.cpu_s()
        while time.monotonic() < end:
            time.sleep(0.05)
            now = self.cpu_s()
            if now - last < QUIET_S:
                return now
            last = now
        return last

    def most_of_one(self) -> int | None:
        """The most memory that was resident since `forget_most`, as the kernel noted it; None for several processes."""
        if len(family(self.root)) > 1:
            return None
        lines = Path(f"/proc/{self.root}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

    def forget_most(self) -> None:
        Path(f"/proc/{self.root}/clear_refs").write_text("5")

    def memory(self) -> Memory:
        total = Memory()
        shared: dict[tuple[int, int], int] = {}
        for pid in family(self.root):
            total.processes += 1
            total.private += rollup(pid)
            shared.update(shared_files(pid))
        total.shared = sum(shared.values())
        return total


@dataclass
class Memory:
    """Bytes: what processes have for themselves (code and read files by their share), and shared memory, once."""

    private: int = 0
    shared: int = 0
    processes: int = 0

    @property
    def total(self) -> int:
        return self.private + self.shared


def rollup(pid: int) -> int:
    """Anonymous memory and the process's share of mapped files."""
    wanted = {"Pss_Anon:", "Pss_File:"}
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.split()[0] in wanted)
    except OSError:
        return 0


def shared_files(pid: int) -> dict[tuple[int, int], int]:
    """Allocated bytes of each memfd and file in /dev/shm that the process has open or mapped, by its inode."""
    found: dict[tuple[int, int], int] = {}
    for folder in ("fd", "map_files"):
        try:
            paths = list(Path(f"/proc/{pid}/{folder}").iterdir())
        except OSError:
            continue
        for path in paths:
            try:
                if str(path.readlink()).startswith(("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")):
                    info = path.stat()
                    found[info.st_dev, info.st_ino] = info.st_blocks * 512
            except OSError:
                continue
    return found
