"""docs/messages.md: every message that a user can meet, read from the sources, and the test that provokes it.

    scripts/messages.py             writes the page anew, with the tests that it names kept
    scripts/messages.py --check     fails where the page is not what the sources say, where a test that it names is
                                    gone, or where a message has neither a test nor a reason (REASONS, UNTESTED)
    scripts/messages.py record [-k] [COMMAND...]
                                    builds everything in build/messages with the recorder (tests/messages/), runs the
                                    command (ctest and pytest without one), and takes what it provoked into the page;
                                    -k keeps what earlier recordings found

A message is known by its room and its words; `...` stands for what is put in. The page itself keeps the last column.
"""

from __future__ import annotations

import ast
import collections
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "messages.md"
ERRORS = ROOT / "docs" / "errors.md"
BUILD = ROOT / "build" / "messages"
RECORDER = "tests/messages"
UNTESTED = ROOT / RECORDER / "untested.txt"  # "ROOM: TEXT" of messages that a test could provoke, and none was seen to

# Function -> where its format is among its arguments, and how its message arrives (None: by the code before it).
CALLS = {
    "mr_error_set": (1, None),
    "mr_error_set_errno": (1, "system call"),
    "mr_error_append": (0, "in front of another"),
    "mr_log_error": (0, "log: error"),
    "mr_log_warning": (0, "log: warning"),
    "mr_log_info": (0, "log: info"),
    "mr_log": (1, "log"),
    "mr_doctor_report": (3, "`doctor`, `check`"),
    "mr_reply_error": (4, "devstore's answer"),
    "mr_s3_error_said": (3, "devstore's answer"),
    "PyErr_SetString": (1, "exception"),
    "PyErr_Format": (1, "exception"),
    "ring_warn": (0, "RuntimeWarning"),
    "fprintf": (1, "standard error"),
}
CODES = {
    "USAGE": "ValueError, status 2",
    "CONFIG": "ValueError, status 2",
    "NOT_FOUND": "FileNotFoundError",
    "EXISTS": "FileExistsError",
    "DENIED": "PermissionError",
    "CHANGED": "ChangedError",
    "TIMEOUT": "TimeoutError",
    "GONE": "SupervisorGone",
}
FOLDERS = ["shm", "supervisor", "worker", "cli", "devstore", "python"]
# Texts for people that are no messages: help, descriptions of options and keys, what `top`, `stat`, `bench` show.
NO_MESSAGES = re.compile(
    r"cli/(help|man|completion|check|stat\w*|top\w*|bench\w*)\.c|shm/verbs/verbs\.c|shm/control/config_keys\.c"
    r"|devstore/(main|mime|shapes)\.c|supervisor/stat\.c"
)
TOKEN = re.compile(
    r"""(?P<space>\s+|/\*.*?\*/|//[^\n]*)|(?P<directive>^[ \t]*\#(?:\\\n|[^\n])*)|"""
    r"""(?P<string>"(?:\\.|[^"\\])*")|(?P<char>'(?:\\.|[^'\\])*')|(?P<name>\w+)|(?P<other>.)""",
    re.S | re.M | re.X,
)
FORMAT = re.compile(r"%[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+))?(?:hh|h|ll|l|j|z|t)?[a-zA-Z]")
# A text that only a part of a message can be: three words.
WORDS = re.compile(r"(?<![\w/.-])[A-Za-z']+,? (?:\.\.\. )?[A-Za-z']+,? (?:\.\.\. )?[A-Za-z']+(?![\w/])")
NO_TEXT = re.compile(r"^[<{?]|^--|<\?xml|HTTP/1")
# Their texts are none: what is printed as a result, formats of arguments, comparisons.
OTHER_CALLS = re.compile(
    r"mr_log_debug|f?printf|f?puts|fwrite|PyArg_\w+|Py_BuildValue|json_\w*pack\w*|_?[sS]tatic_assert|mr_text_\w+|mr_reply_header"
    r"|str\w*cmp|strstr|sscanf|PyUnicode_FromFormat|setenv|getenv"
)
# Why no test provokes a message, by the first pattern that is found in "ROOM: TEXT CODES".
REASONS = [
    (r"NO_MEMORY|no memory|no room for|SHA-256", "memory, shared memory or descriptors are used up"),
    (r"INTERNAL|please report|internal error", "a broken invariant of ours"),
    (r"PROTOCOL|breaks the protocol|damaged", "a peer of ours that breaks the protocol, or damaged memory"),
    (r"belongs to user|PID namespace|WIPEONFORK|this kernel|/dev/shm|2 MiB|ulimit", "another user, machine or kernel"),
    (
        r"system call|cannot write the request log|connection could not be reset",
        "a system call that does not fail here",
    ),
    (r"in front of another", "said before a message that is not provoked"),
    (
        r"^(shm|worker|supervisor|cli|python/src)\b.*(USAGE|part of one.*wanted)",
        "an argument that no caller gives",
    ),
    (r"BUSY|ask again|being started", "a state that passes by itself; the caller asks again"),
]
HEAD = """# Messages

<!-- Made by `scripts/messages.py` from the sources (`make format`): change them there. -->

Every message that a user can meet, by the folder of the source that says it; [errors.md](errors.md) says more about
those that need a decision. `...` stands for what is put in. Several of these may follow one another in one line: what
was being done, to which object, why it failed.

*Arrives as*: the exception of Python; as a command the same is a line on standard error and exit status 1, or 2 where
it says so. A *system call* is followed by the system's own word for it, and the exception is by that word. *Part of
one* is put in at a `...` of another message. *Provoked by* names a test in which the message appeared
(`scripts/messages.py record`) or, where none was recorded, that has its words: {provoked} of {total}. The others:

| not provoked because | messages |
|---|---:|"""
PART = "part of one"
NO_TEST = "no test was seen to"
NOTHING = ("other", ";")
ESCAPE = {r"\n": " ", r"\t": " ", r"\r": "", r"\"": '"', r"\\": "\\", r"\033[K": ""}


Token = tuple[str, str]  # its kind, its text


@dataclass
class Message:
    room: str
    text: str
    how: set[str] = field(default_factory=set)
    exact: bool = False  # the text is a format as a call has it; else a part of one
    code: set[str] = field(default_factory=set)


def shown(text: str) -> str:
    """A format as the page has it: placeholders as `...`."""
    text = FORMAT.sub("...", text.replace("%%", "\0")).replace("\0", "%")
    return " ".join(re.sub(r"\.{4,}", "...", text).split())


def words(text: str) -> str:
    """What is fixed in it."""
    return re.sub(r"[^A-Za-z]+", " ", text.replace("...", " ")).strip()


def unquoted(literal: str) -> str:
    return re.sub(r"\\(?:033\[K|.)", lambda m: ESCAPE.get(m[0], m[0]), literal[1:-1])


def tokens(path: Path) -> list[Token]:
    found = ((m.lastgroup or "", m[0]) for m in TOKEN.finditer(path.read_text()))
    return [(kind, text) for kind, text in found if kind not in ("space", "directive")]


def macros() -> dict[str, str]:
    """NAME -> text, of the macros that are a string literal."""
    found = {}
    for path in sources("*.h", "*.c"):
        for name, text in re.findall(r'^#define (\w+)\s+("(?:\\.|[^"\\])*")\s*(?:/\*.*)?$', path.read_text(), re.M):
            found[name] = text
    return found


def sources(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--"]
        + [f"{folder}/**/{pattern}" for folder in FOLDERS for pattern in patterns]
        + [f"{folder}/{pattern}" for folder in FOLDERS for pattern in patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    return sorted({ROOT / name for name in listed if name and (ROOT / name).exists()})


def literals(part: list[Token], known: dict[str, str], joined: bool = False) -> Iterator[str]:
    """The string literals of a run of tokens, neighbours joined. joined: by + too, as in C++."""
    text: str | None = None
    for i, (kind, token) in enumerate(part):
        following = part[i + 1][1] if i + 1 < len(part) else ""
        if kind == "string":
            text = (text or "") + unquoted(token)
        elif kind == "name" and token.startswith("PRI"):
            text = (text or "") + "u"
        elif kind == "name" and token in known and (text is not None or following.startswith('"')):
            text = (text or "") + unquoted(known[token])
        elif kind == "name" and text is not None and re.fullmatch(r"MR_[A-Z_]*", token):
            text += "%s"  # a number's name, by a macro that makes text of it
        elif token in "()" and text is not None and re.search(r"MR_[A-Z_]*$|%s$", text) and not joined:
            pass
        elif joined and token == "+":
            text = (text or "%s") + ("" if following.startswith('"') else "%s")
        elif joined and text is not None and token not in ",;?:{}":
            pass
        elif text is not None:
            yield text
            text = None
    if text is not None:
        yield text


def arguments(part: list[Token], at: int) -> tuple[list[list[Token]], int]:
    """Those of the call whose parenthesis opens at `at`, and where it ends."""
    found: list[list[Token]] = [[]]
    depth = 0
    for i in range(at, len(part)):
        kind, token = part[i]
        if kind == "other" and token in "([{":
            depth += 1
            if depth == 1:
                continue
        elif kind == "other" and token in ")]}":
            depth -= 1
            if depth == 0:
                return found, i
        if kind == "other" and token == "," and depth == 1:
            found.append([])
        else:
            found[-1].append(part[i])
    return found, len(part)


def c_messages(path: Path, known: dict[str, str]) -> Iterator[Message]:
    name = str(path.relative_to(ROOT))
    room = str(path.parent.relative_to(ROOT))
    part = tokens(path)
    joined = path.suffix == ".cpp"
    rest = list(part)  # without what is read already, or is none
    for i, (kind, token) in enumerate(part[:-1]):
        if kind != "name" or part[i + 1][1] != "(":
            continue
        if OTHER_CALLS.fullmatch(token):
            _, end = arguments(part, i + 1)
            rest[i:end] = [NOTHING] * (end - i)
        if token not in CALLS:
            continue
        position, how = CALLS[token]
        given, _ = arguments(part, i + 1)
        if len(given) <= position or (token == "fprintf" and given[0] != [("name", "stderr")]):
            continue
        first = i + 2 + sum(len(g) + 1 for g in given[:position])
        rest[first : first + len(given[position])] = [NOTHING] * len(given[position])
        code = {t.removeprefix("MR_E_") for _, t in given[0] if t.startswith("MR_E_") and t != "MR_E_COUNT"}
        arrives = {how} if how else {CODES.get(c, "Error") for c in code} or {"as its cause"}
        if token.startswith("PyErr_"):
            arrives = {t.removeprefix("PyExc_") for _, t in given[0] if t.startswith("PyExc_")} or {"exception"}
        for text in literals(given[position], known, joined):
            if words(shown(text)):
                yield Message(room, shown(text), arrives, True, code)
    if NO_MESSAGES.fullmatch(name):
        return
    for text in literals(rest if joined else in_functions(rest), known, joined):
        if WORDS.search(shown(text)) and not NO_TEXT.search(text):
            yield Message(room, shown(text), {PART})


def in_functions(part: list[Token]) -> list[Token]:
    """Without what stands outside of functions: tables of names, options, descriptions."""
    found: list[Token] = []
    depth, inside = 0, False
    for i, token in enumerate(part):
        if token[1] == "{" and token[0] == "other":
            if depth == 0:
                inside = i > 0 and part[i - 1][1] == ")"
            depth += 1
        elif token[1] == "}" and token[0] == "other":
            depth -= 1
        found.append(token if inside and depth else NOTHING)
    return found


def python_text(node: ast.expr) -> Iterator[str]:
    """The text of a literal, an f-string, a sum of them; several for a choice."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value.replace("%", "%%")
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(v.value).replace("%", "%%") if isinstance(v, ast.Constant) else "%s" for v in node.values)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for left in list(python_text(node.left)) or ["%s"]:
            for right in list(python_text(node.right)) or ["%s"]:
                yield left + right
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        for left in python_text(node.left):
            yield left.replace("%%", "%")
    elif isinstance(node, ast.IfExp):
        yield from python_text(node.body)
        yield from python_text(node.orelse)


def python_messages(path: Path) -> Iterator[Message]:
    room = str(path.parent.relative_to(ROOT))
    read = set()
    for node in ast.walk(ast.parse(path.read_text())):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call) or not call.args or id(call) in read:
            continue
        read.add(id(call))
        name = ast.unparse(call.func)
        # An exception may be made here, and raised elsewhere.
        made = name in ("warnings.warn", "warn") or re.fullmatch(r"(\w+\.)*\w*(Error|Gone|Warning)", name)
        if not made and not isinstance(node, ast.Raise):
            continue
        how = name.split(".")[-1]
        if how == "warn":
            category = [ast.unparse(a) for a in [*call.args[1:2], *(k.value for k in call.keywords)]]
            how = next((c.split(".")[-1] for c in category if c.endswith("Warning")), "UserWarning")
        for argument in call.args:
            for text in python_text(argument):
                if len(words(shown(text))) > 1:
                    yield Message(room, shown(text), {how})


def messages() -> list[Message]:
    known = macros()
    found: dict[tuple[str, str], Message] = {}
    for path in sources("*.c", "*.cpp"):
        for message in c_messages(path, known):
            add(found, message)
    for path in sources("*.py"):
        for message in python_messages(path):
            add(found, message)
    return sorted(found.values(), key=lambda m: (rank(m.room), m.room, m.text.lower(), m.text))


def add(found: dict[tuple[str, str], Message], message: Message) -> None:
    known = found.setdefault((message.room, message.text), message)
    known.how = known.how | message.how
    known.code = known.code | message.code
    known.exact |= message.exact


def rank(room: str) -> int:
    return FOLDERS.index(room.split("/")[0])


# ---- what the tests provoke ----


def test_programs() -> dict[str, str]:
    """The program of a C test -> its source: by name, or the first in the CMake files."""
    found = {path.stem: str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("*.c"))}
    for path in sorted((ROOT / "tests").rglob("CMakeLists.txt")):
        folder = path.parent.relative_to(ROOT)
        for name, first in re.findall(r"mr_add_test\((\w+) SOURCES\s+(\S+)", path.read_text()):
            found.setdefault(f"test_{name}", f"{folder}/{first}")
    return found


def recorded(log: Path) -> list[tuple[str, str, str]]:
    """(test file, format as the page has it, text) of each line of a recording, without repetitions."""
    programs = test_programs()
    found = set()
    for line in log.read_text(errors="replace").split("\n"):
        test, fmt, text = [*line.split("\t"), "", ""][:3]
        file = programs.get(test, test.split("::")[0])
        if file.startswith("tests/") and (ROOT / file).is_file():
            found.add((file, shown(fmt), " ".join(text.split())))
    return sorted(found)


def quoted(found: list[Message]) -> dict[tuple[str, str], str]:
    """The test that has a message's words, of those that have three words or more in one piece."""
    texts = {
        path: re.sub(r"\s+", " ", re.sub(r"\\\\(?=\W)", "", path.read_text(errors="replace")))
        for pattern in ("test_*.py", "test_*.c")
        for path in sorted((ROOT / "tests").rglob(pattern))
    }
    tests = {}
    for message in found:
        pieces = [piece.strip(" :;,.") for piece in message.text.split("...")]
        long = [piece for piece in pieces if len(words(piece)) >= 16 and words(piece).count(" ") >= 2]
        has = (path for path, text in texts.items() if any(piece in text for piece in long))
        path = next(has, None)
        if path:
            tests[message.room, message.text] = str(path.relative_to(ROOT))
    return tests


def provoked(found: list[Message], records: list[tuple[str, str, str]]) -> dict[tuple[str, str], set[str]]:
    """The tests that provoked each message."""
    by_format = collections.defaultdict(set)
    by_text = collections.defaultdict(set)
    for file, fmt, text in records:
        by_format[fmt].add(file)
        by_text[text].add(file)
    tests = {}
    for message in found:
        files = set(by_format.get(message.text, ()))
        if not files:
            pieces = message.text.split("...")
            pattern = re.compile(".*?".join(re.escape(piece) for piece in pieces))
            longest = max(pieces, key=len)
            for text, by in by_text.items():
                if longest in text and pattern.search(text):
                    files |= by
        if files:
            tests[message.room, message.text] = files
    return tests


def record(arguments: list[str]) -> None:
    """Builds with the recorder, runs the command, and returns what it provoked."""
    log = BUILD / "recording.tsv"
    keep = arguments[:1] == ["-k"]
    command = arguments[1:] if keep else arguments
    python = str(ROOT / ".venv/bin/python")
    BUILD.mkdir(parents=True, exist_ok=True)
    include = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('include'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    source = (ROOT / RECORDER / "record.c").read_text()
    wraps = " ".join(f"-Wl,--wrap={name}" for name in re.findall(r"\b__wrap_(\w+)\(", source))
    # The recorder's own references are weak, and would fetch nothing; a program without these is no fault.
    fetched = "-Wl,-u,mr_error_set,-u,mr_log,--unresolved-symbols=ignore-all"
    steps = [
        ["gcc", "-O2", "-fPIC", f"-I{ROOT}", f"-I{include}", "-c", f"{ROOT}/{RECORDER}/record.c", "-o", "record.o"],
        ["cmake", "-S", str(ROOT), "-B", ".", "-G", "Ninja", "-DMR_TESTS=ON", f"-DPython_EXECUTABLE={python}"]
        + ["-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_EXE_LINKER_FLAGS={BUILD}/record.o {wraps} {fetched}"]
        + [f"-DCMAKE_MODULE_LINKER_FLAGS={BUILD}/record.o {wraps}"],
        ["cmake", "--build", ".", f"-j{os.cpu_count()}"],
    ]
    for step in steps:
        subprocess.run(step, cwd=BUILD, check=True, stdout=subprocess.DEVNULL)
    log.open("a" if keep else "w").close()
    environment = os.environ | {
        "MILLRACE_TEST_MESSAGES": str(log),
        "MILLRACE_BUILD": str(BUILD),
        "PYTHONPATH": os.pathsep.join([str(ROOT / RECORDER), str(BUILD / "python")]),
    }
    every = [["ctest", "--test-dir", str(BUILD), "-LE", "model|slow|crash"], [python, "-m", "pytest", "-q", "tests"]]
    for run in [command] if command else every:
        done = subprocess.run(run, cwd=ROOT, env=environment)
        if done.returncode != 0:
            print(f"messages.py: {run[0]} ended with {done.returncode}; what it provoked counts", file=sys.stderr)


# ---- the page ----


def cell(text: str) -> str:
    """A text in a table's cell."""
    return "`" + text.replace("`", "'").replace("|", "\\|") + "`"


def advice() -> list[tuple[re.Pattern[str], str]]:
    """(pattern, link) of the messages that errors.md says more about."""
    found = []
    heading = ""
    for line in ERRORS.read_text().splitlines():
        if line.startswith("### "):
            heading = line[4:]
        elif heading and line.startswith("| ") and not line.startswith(("| message", "| ---")):
            for quoted in re.findall(r"`([^`]+)`", line.split("|")[1]):
                pieces = re.split(r"\.\.\.|\b[NMAB]\b|\d+|'[^']*'|\bFILE\b|\bfetch worker\b", quoted)
                fixed = [re.escape(piece.strip()) for piece in pieces if words(piece)]
                if len(words(" ".join(fixed))) >= 10:
                    anchor = heading.lower().replace(" ", "-")
                    found.append((re.compile(".*?".join(fixed)), f"[{heading}](errors.md#{anchor})"))
    return found


def previous() -> dict[tuple[str, str], str]:
    """(room, text) -> the test file that the page names."""
    found: dict[tuple[str, str], str] = {}
    room = ""
    for line in PAGE.read_text().splitlines() if PAGE.exists() else ():
        if line.startswith("## "):
            room = line[3:].strip("`/ ")
        row = re.fullmatch(r"\| `(.*?)` \| .* \| \[[^]]*\]\(\.\./(\S+)\) \|", line)
        if row:
            found[room, row[1].replace("\\|", "|")] = row[2]
    return found


def untested() -> set[str]:
    return set(UNTESTED.read_text().splitlines()) if UNTESTED.exists() else set()


def reason(message: Message) -> str:
    if f"{message.room}: {message.text}" in untested():
        return NO_TEST
    for pattern, text in REASONS:
        if re.search(pattern, f"{message.room}: {message.text} {' '.join(sorted(message.code | message.how))}"):
            return text
    return ""


def page(
    found: list[Message], tests: dict[tuple[str, str], str], asserted: set[tuple[str, str]]
) -> tuple[str, list[Message]]:
    """Its text, and the messages with neither a test nor a reason."""
    links = advice()
    rooms = collections.defaultdict(list)
    bare = []
    counts: collections.Counter[str] = collections.Counter()
    for message in found:
        test = tests.get((message.room, message.text), "")
        why = "" if test else reason(message)
        if not test and not why:
            bare.append(message)
        by = f"[{Path(test).name}](../{test})" if test else f"not provoked: {why or 'TO BE SAID'}"
        if test and (message.room, message.text) in asserted:
            by = f"words in {by}"
        counts["" if test else why] += 1
        link = next((link for pattern, link in links if pattern.search(message.text)), "")
        how = ", ".join(sorted(message.how - {PART} or message.how))
        rooms[message.room].append(f"| {cell(message.text.replace('`', chr(39)))} | {how} | {link} | {by} |")
    lines = [HEAD.format(total=len(found), provoked=counts.pop("", 0))]
    lines += [f"| {why or 'TO BE SAID'} | {number} |" for why, number in sorted(counts.items())]
    for room in rooms:
        lines += ["", f"## `{room}/`", "", "| message | arrives as | more | provoked by |", "|---|---|---|---|"]
        lines += rooms[room]
    return "\n".join(lines) + "\n", bare


def main() -> int:
    arguments = sys.argv[1:]
    found = messages()
    keys = {(message.room, message.text.replace("`", "'")): (message.room, message.text) for message in found}
    kept = {keys[key]: test for key, test in previous().items() if key in keys and (ROOT / test).is_file()}
    assertions = quoted(found)
    if arguments[:1] == ["record"]:
        record(arguments[1:])
        for key, files in provoked(found, recorded(BUILD / "recording.tsv")).items():
            if kept.get(key) not in files:
                kept[key] = min(files, key=lambda file: ("/fuzz" in file, not file.endswith(".c"), file))
    text, bare = page(found, assertions | kept, assertions.keys() - kept.keys())
    problems = [f"{m.room}: no test provokes, and REASONS does not explain: {m.text}" for m in bare]
    lacking = {f"{m.room}: {m.text}" for m in found if not {(m.room, m.text)} & (kept.keys() | assertions.keys())}
    problems += [f"{UNTESTED.name}: has a test by now, or is gone: {line}" for line in sorted(untested() - lacking)]
    if arguments == ["--check"]:
        if not PAGE.exists() or PAGE.read_text() != text:
            problems.append("docs/messages.md is not what the sources say: run `make format`")
    else:
        PAGE.write_text(text)
    if problems:
        problems.append("`scripts/messages.py record -k COMMAND` takes in what a new test provokes")
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
