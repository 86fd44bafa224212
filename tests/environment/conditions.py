"""Surroundings that a program may find at its start, and what each program does in them.

python -m tests.environment.conditions prints the table of docs/testing.md.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.groups import memory_group
from tests.torture.scenes import BIN, BUILD, CONFIG, NEW, OBJECTS, SIZE

HANG_S = 150.0
PROGRAMS = ["run", "cat", "python"]
TRAINER_PY = Path(__file__).resolve().parent.parent / "torture" / "trainer.py"


class Unavailable(Exception):
    """This machine cannot make the condition, for a reason."""


@dataclass
class Place:
    """A folder of its own with six objects, and the command of each program there."""

    root: Path
    bin: Path = BIN
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("data", "out", "r", "cache"):
            (self.root / name).mkdir(mode=0o700)
        for i in range(OBJECTS):
            (self.root / "data" / f"{i:03}").write_bytes(bytes([i + 1]) * ((i + 1) * 700))
        config = CONFIG.format(data=f"file://{self.root}/data/", compose="never")
        (self.root / "c.toml").write_text(config)
        self.environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(self.root / "r"),
            "XDG_CACHE_HOME": str(self.root / "cache"),
            "PYTHONPATH": str(BUILD / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "MILLRACE_BIN": str(self.bin),
            "MILLRACE_CONFIG": str(self.root / "c.toml"),
        }

    def command(self, program: str) -> list[str]:
        target = f"file://{self.root}/out/state"
        if program == "run":
            inner = [str(self.bin / "millrace-test-trainer"), str(OBJECTS), target, str(SIZE)]
            return [str(self.bin / "millrace"), "run", "-c", str(self.root / "c.toml"), "--", *inner]
        if program == "cat":
            return [str(self.bin / "millrace"), "cat", f"file://{self.root}/data/005"]
        return [sys.executable, str(TRAINER_PY), f"file://{self.root}/data/", target, str(SIZE)]


@dataclass
class Condition:
    name: str
    preexec: Callable[[Place], None] = lambda place: None
    environment: Callable[[Place], dict[str, str | None]] = lambda place: {}
    shell: str = ""  # run as root in a mount namespace of its own, before the program; $T is the place
    programs: tuple[str, ...] = tuple(PROGRAMS)
    # What the programs say that cannot work; those that are not here work.
    says: dict[str, str] = field(default_factory=dict)
    around: Callable[[Place], contextlib.AbstractContextManager[None]] = lambda place: contextlib.nullcontext()


def limit(which: int, value: int) -> Callable[[Place], None]:
    return lambda place: resource.setrlimit(which, (value, value))


# ---- conditions that need more than a line ----


def without_permissions(place: Place) -> None:
    os.umask(0o777)


def without_processes(place: Place) -> None:
    """The limit does not count for root: as nobody, who owns the folder."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


@contextlib.contextmanager
def owned_by_nobody(place: Place) -> Iterator[None]:
    """With copies of the programs: the tree may lie where only its owner may look."""
    place.bin = place.root / "bin"
    place.bin.mkdir()
    for name in ("millrace", "millrace-worker", "millrace-test-trainer"):
        shutil.copy(BIN / name, place.bin)
    if os.geteuid() == 0:
        for path in [place.root, *place.root.rglob("*")]:
            os.chown(path, 65534, 65534)
    yield


def in_a_deleted_folder(place: Place) -> None:
    folder = place.root / ("d" * 255)
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()


_locales: list[tempfile.TemporaryDirectory[str]] = []


def german(place: Place) -> dict[str, str | None]:
    """A locale whose numbers have commas, made once a process."""
    if not shutil.which("localedef") or not Path("/usr/share/i18n/locales/de_DE").exists():
        raise Unavailable("no localedef with de_DE (package locales)")
    if not _locales:
        _locales.append(tempfile.TemporaryDirectory(prefix="environment-locale-"))
        target = Path(_locales[0].name) / "de_DE.UTF-8"
        subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", target], check=True, capture_output=True)
    return {"LC_ALL": "de_DE.UTF-8", "LOCPATH": _locales[0].name}


@contextlib.contextmanager
def small_cgroup(place: Place) -> Iterator[None]:
    """A group of 48 MiB that the program enters by its own hand: $G. A private supervisor ends a moment after it."""
    with memory_group(48 << 20) as group:
        if not group:
            raise Unavailable("no memory cgroup can be made here")
        place.environment["G"] = str(group)
        yield


def enter_group(place: Place) -> None:
    (Path(place.environment["G"]) / "cgroup.procs").write_text(str(os.getpid()))


CLOCK = str(BIN / "millrace-test-clock.so")

FEW_DESCRIPTORS = r"Too many open files \(at most 16 .*ulimit -n"
FILE_SIZE = r"File too large \(.*ulimit -f"
NO_PROC = "the path of this program is unknown: is /proc mounted"

CONDITIONS = [
    Condition("as usual"),
    Condition("64 descriptors", limit(resource.RLIMIT_NOFILE, 64)),
    Condition(
        "16 descriptors",
        limit(resource.RLIMIT_NOFILE, 16),
        says={"run": FEW_DESCRIPTORS, "python": FEW_DESCRIPTORS},
    ),
    Condition("64 MiB of addresses", limit(resource.RLIMIT_AS, 64 << 20)),
    Condition(
        "files of 0 bytes",
        limit(resource.RLIMIT_FSIZE, 0),
        says={"run": FILE_SIZE, "cat": FILE_SIZE, "python": FILE_SIZE},
    ),
    Condition(
        "no more processes",
        without_processes,
        programs=("run", "cat"),
        around=owned_by_nobody,
        says={"run": r"cannot start .*trainer \(ulimit -u.*: Resource temporarily unavailable"},
    ),
    Condition("umask 0777", without_permissions),
    Condition("no HOME", environment=lambda place: {"HOME": None}),
    Condition(
        "no HOME, no XDG folders",
        environment=lambda place: {"HOME": "/nonexistent", "XDG_RUNTIME_DIR": None, "XDG_CACHE_HOME": None},
    ),
    Condition("no TMPDIR", environment=lambda place: {"TMPDIR": "/nonexistent"}),
    Condition("an unwritable TMPDIR", environment=lambda place: {"TMPDIR": "/proc"}),
    Condition("/dev/shm of 1 MiB", shell="mount -t tmpfs -o size=1m tmpfs /dev/shm"),
    Condition("/dev/shm read-only", shell="mount -t tmpfs -o ro tmpfs /dev/shm"),
    Condition(
        "no /dev/shm",
        shell="umount -l /dev/shm; mount -t tmpfs -o size=0,mode=0 tmpfs /dev; mknod -m 666 /dev/null c 1 3",
    ),
    Condition("read-only root", shell='mount --bind "$T" "$T" && mount -o remount,bind,ro /'),
    Condition(
        "read-only root and runtime folder",
        shell='mount --bind "$T" "$T" && mount --bind "$T/out" "$T/out" && mount -o remount,bind,ro "$T" '
        "&& mount -o remount,bind,ro /",
        says={"run": "set XDG_RUNTIME_DIR to a folder of yours", "python": "Read-only file system: .*/r/"},
    ),
    Condition(
        "no /proc",
        shell="mount -t tmpfs tmpfs /proc",
        says={"run": NO_PROC, "cat": NO_PROC, "python": NO_PROC},
    ),
    Condition("cgroup of 48 MiB", enter_group, around=small_cgroup),
    Condition(
        "cgroup of 48 MiB, default sizes",
        enter_group,
        environment=lambda place: {"MILLRACE_CONFIG": None},
        programs=("python",),
        around=small_cgroup,
        says={"python": "only .*MiB are left .*Set checkpoint.arena_bytes to less"},
    ),
    Condition("de_DE.UTF-8", environment=german),
    Condition("a clock an hour fast", environment=lambda place: {"LD_PRELOAD": CLOCK, "CLOCK_OFF_S": "3600"}),
    Condition("a clock an hour slow", environment=lambda place: {"LD_PRELOAD": CLOCK, "CLOCK_OFF_S": "-3600"}),
    Condition("a deleted folder of 255 bytes", in_a_deleted_folder),
]


# ---- one program in one condition ----


@dataclass
class Met:
    status: int
    out: bytes
    err: str
    works: bool


def meet(condition: Condition, program: str) -> Met:
    """Runs it. Raises Unavailable where the machine cannot make the condition."""
    with tempfile.TemporaryDirectory(prefix="environment-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        place = Place(root)
        with condition.around(place):
            command = place.command(program)
            environment = dict(place.environment)
            for name, value in condition.environment(place).items():
                environment.pop(name, None)
                if value is not None:
                    environment[name] = value
            if condition.shell:
                command = in_namespace(condition, command)
                environment["T"] = folder
            done = subprocess.run(
                command,
                env=environment,
                cwd=root,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=HANG_S,
                preexec_fn=lambda: condition.preexec(place),
            )
            state = root / "out" / "state"
            with contextlib.suppress(OSError):
                state.chmod(0o600)
            saved = state.read_bytes() if state.exists() else None
        wanted = bytes([6]) * 4200 if program == "cat" else b"whole\n"
        right = done.stdout == wanted and (program == "cat" or saved == NEW)
        assert saved in (None, NEW), "half a checkpoint"
        return Met(done.returncode, done.stdout, done.stderr.decode(errors="replace"), done.returncode == 0 and right)


def verdict(condition: Condition, program: str, met: Met) -> str | None:
    """None: it works, or ends with a status and the words that are expected; else what is wrong."""
    wanted = condition.says.get(program)
    if wanted is None:
        return None if met.works else f"WRONG: status {met.status}: {met.err[-400:]}"
    if met.status <= 0 or met.status >= 128 or not re.search(wanted, met.err):
        return f"WRONG: status {met.status} without {wanted!r}: {met.err[-400:]}"
    return None


def in_namespace(condition: Condition, command: list[str]) -> list[str]:
    unshare = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid() != 0 or subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        raise Unavailable("mount namespaces are for root")
    return [*unshare, "sh", "-c", f'{{ {condition.shell}; }} || exit 99; exec "$@"', "sh", *command]


def main() -> int:
    print("| surroundings | " + " | ".join(PROGRAMS) + " |\n|---|" + "---|" * len(PROGRAMS))
    bad = 0
    for condition in CONDITIONS:
        cells = []
        for program in PROGRAMS:
            if program not in condition.programs:
                cells.append("")
                continue
            try:
                met = meet(condition, program)
            except Unavailable as error:
                cells.append(f"not here: {error}")
                continue
            wrong = verdict(condition, program, met)
            bad += wrong is not None
            said = re.search(condition.says.get(program, "^"), met.err)
            cells.append(wrong or ("works" if met.works else f"status {met.status}: {said[0] if said else ''}"))
        print(f"| {condition.name} | " + " | ".join(cells) + " |", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
