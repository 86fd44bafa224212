"""scripts/messages.py: what it reads out of sources and recordings, and that docs/messages.md is what it makes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT

SCRIPT = ROOT / "scripts" / "messages.py"


@pytest.fixture
def messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, for a tree of its own."""
    spec = importlib.util.spec_from_file_location("messages", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "messages", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def texts(messages: ModuleType, source: str, name: str = "room/a.c") -> list[tuple[str, str]]:
    path = messages.ROOT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    read = messages.python_messages(path) if name.endswith(".py") else messages.c_messages(path, {"FOLDER": '"dust/"'})
    return sorted((message.text, ", ".join(sorted(message.how))) for message in read)


def test_the_page_is_what_the_sources_say() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_formats_of_calls(messages: ModuleType) -> None:
    source = """
    /* mr_error_set(MR_E_IO, "in a comment") */
    int f(int n) {
        mr_error_set(MR_E_NOT_FOUND, "no object of %" PRIu64 " bytes in " /* where */
                     "%s: 100%%", n, g(1, 2));
        mr_error_set(n ? MR_E_IO : MR_E_USAGE, n == 1 ? "one is missing" : "%d are missing", n);
        mr_error_set_errno(errno, "cannot clean " FOLDER "%.*s", 3, "abc");
        mr_log_debug("not for users, %s", "and nor is this");
        fprintf(stdout, "a result, and no message\\n");
        fprintf(stderr, "it failed\\n");
        return printf("results are none of them");
    }
    """
    several = ", ".join(sorted(["Error", messages.CODES["USAGE"]]))
    assert texts(messages, source) == [
        ("... are missing", several),
        ("cannot clean dust/...", "system call"),
        ("it failed", "standard error"),
        ("no object of ... bytes in ...: 100%", "FileNotFoundError"),
        ("one is missing", several),
    ]


def test_parts_of_messages_stand_in_functions_alone(messages: ModuleType) -> None:
    source = """
    static const char *const help[] = {"a table describes something"};
    static_assert(1, "never seen by anybody");
    int f(int n) { return fail(n, n ? "its end was not found" : "two words"); }
    """
    assert texts(messages, source) == [("its end was not found", messages.PART)]


def test_sums_of_cpp(messages: ModuleType) -> None:
    source = """int f() { throw std::string("unknown key '") + name(1) + "' in [" + section + "]"; }"""
    assert texts(messages, source, "room/a.cpp") == [("unknown key '...' in [...]", messages.PART)]


def test_exceptions_and_warnings_of_python(messages: ModuleType) -> None:
    source = """
def f(n):
    warnings.warn(f"{n} is a lot", RuntimeWarning, stacklevel=2)
    if n > 3:
        raise ValueError(f"n is {n}: " + ("too much" if n > 4 else "no four of it") + " is here")
    raise errors.ChangedError("it is another") from None
"""
    assert texts(messages, source, "room/a.py") == [
        ("... is a lot", "RuntimeWarning"),
        ("it is another", "ChangedError"),
        ("n is ...: no four of it is here", "ValueError"),
        ("n is ...: too much is here", "ValueError"),
    ]


def test_a_recording_names_the_tests(messages: ModuleType) -> None:
    for name in ("tests/a/test_a.c", "tests/b/test_b.py"):
        path = messages.ROOT / name
        path.parent.mkdir(parents=True)
        path.write_text("")
    (messages.ROOT / "tests/a/CMakeLists.txt").write_text("mr_add_test(first SOURCES test_a.c LINKS mr_base)\n")
    log = messages.ROOT / "recording.tsv"
    log.write_text(
        "test_first\t%lu lines of %s\t3 lines of x\n"
        "tests/b/test_b.py::test_it (call)\t%s\tgs://b/o: it ended too early\n"
        "tests/b/test_gone.py::test_it (call)\tnever seen\tnever seen\n"
    )
    found = [
        messages.Message("room", text, {"Error"}, exact)
        for text, exact in (("... lines of ...", True), ("it ended too early", False), ("never seen", True))
    ]
    assert messages.provoked(found, messages.recorded(log)) == {
        ("room", "... lines of ..."): {"tests/a/test_a.c"},
        ("room", "it ended too early"): {"tests/b/test_b.py"},
    }


def test_a_message_with_neither_test_nor_reason_is_named(messages: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    messages.REASONS[:] = [("no memory", "no memory")]
    found = [messages.Message("cli", "no memory for it", {"Error"}), messages.Message("cli", "it broke", {"Error"})]
    monkeypatch.setattr(messages, "UNTESTED", messages.ROOT / "untested.txt")
    messages.UNTESTED.write_text("cli: it stalled\n")
    found.append(messages.Message("cli", "it stalled", {"Error"}))
    monkeypatch.setattr(messages, "ERRORS", messages.ROOT / "errors.md")
    messages.ERRORS.write_text("")
    text, bare = messages.page(found, {("cli", "it went"): "tests/test_a.py"}, set())
    assert [message.text for message in bare] == ["it broke"]
    assert "| `it stalled` | Error |  | not provoked: no test was seen to |" in text
    assert "| `no memory for it` | Error |  | not provoked: no memory |" in text
