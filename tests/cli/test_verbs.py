"""The table of verbs from outside: help, completions, man page, and arguments that are checked before any request."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import BIN, BUILD, ROOT, StartDevstore
from tests.serve import DEADLINE_S

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def call(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "millrace"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env={**os.environ, **env})


def printed(*arguments: str) -> str:
    done = call(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """verb -> its help."""
    verbs = re.findall(r"^  millrace (\w+) ", printed("--help"), re.M)
    assert len(verbs) >= 19
    return {verb: printed("help", verb) for verb in verbs}


@pytest.fixture(scope="module")
def options(helps: dict[str, str]) -> dict[str, list[str]]:
    """verb -> its options, as "--long" and "-l", from its help."""
    found = {}
    for verb, text in helps.items():
        rows = re.findall(r"^  (?:(-\w), |    )(--[a-z-]+)", text, re.M)
        found[verb] = [name for row in rows for name in row if name]
        assert "--help" in found[verb], verb
    return found


# ---- help ----


def test_every_verb_has_its_help(helps: dict[str, str]) -> None:
    for verb, text in helps.items():
        assert text.splitlines()[0].split()[:3] == ["usage:", "millrace", verb]
        assert max(map(len, text.splitlines())) <= 100
        if verb != "devstore":  # a program of its own
            assert printed(verb, "--help") == text
    for verb in set(helps) - {"devstore", "ls"}:
        assert printed(verb, "-h") == helps[verb]
    assert printed("help") == printed("--help") == printed("-h")


def test_help_wins_over_what_else_is_wrong(helps: dict[str, str]) -> None:
    assert printed("cp", "--help", "one") == helps["cp"]
    assert printed("cat", "gs://", "--help") == helps["cat"]


def test_the_commands_page_has_every_verb_and_option(options: dict[str, list[str]]) -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    spans = " ".join(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)))
    for verb, names in options.items():
        assert f"`millrace {verb}" in page, verb
        assert not [name for name in names if not re.search(rf"(?<![\w-]){name}(?![\w-])", spans)], verb


# ---- completions ----


def test_the_completions_have_every_option(options: dict[str, list[str]]) -> None:
    bash, zsh = printed("completion", "bash"), printed("completion", "zsh")
    for verb, names in options.items():
        in_bash = re.search(rf"^    {verb}\)\n(.*?)^        ;;", bash, re.M | re.S)
        in_zsh = re.search(rf"^        {verb}\)\n(.*?)^            ;;", zsh, re.M | re.S)
        assert in_bash and in_zsh and f"        '{verb}:" in zsh
        for name in names:
            if verb == "devstore":
                continue
            assert f" {name} " in in_bash[1], (verb, name)
            assert re.search(rf"['{{,]{name}[]+=,}}\[]", in_zsh[1]), (verb, name)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_completions_are_scripts_of_their_shell(shell: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(printed("completion", shell))
    if shell == "zsh" and not shutil.which("zsh"):  # bash reads nearly all of it: the quotes and brackets at least
        script.write_text(re.sub(r"\$\{verbs%%:\*\}|\(- \*\)", "x", script.read_text()))
        shell = "bash"
    done = subprocess.run([shell, "-n", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def complete(script: Path, line: str) -> list[str]:
    """What bash offers at the end of the line; it separates words at "=" too."""
    words = [word for part in line.split(" ") for word in re.split("(=)", part) if word or "=" not in part]
    if line.endswith("="):
        words = words[:-1] if words[-1] == "" else words
    code = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); compopt() { :; }\n'
    code += '_millrace; ((${#COMPREPLY[@]} == 0)) || printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", code, script, *words], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_bash_completes(tmp_path: Path, helps: dict[str, str], options: dict[str, list[str]]) -> None:
    script = tmp_path / "script"
    script.write_text(printed("completion", "bash"))
    assert complete(script, "millrace ") == [*helps, "--help", "--version"]
    assert complete(script, "millrace com") == ["compose", "completion"]
    for verb in set(helps) - {"devstore"}:
        assert sorted(complete(script, f"millrace {verb} -")) == sorted(options[verb]), verb
    assert complete(script, "millrace ls gs://b/ --rec") == ["--recursive"]
    assert complete(script, "millrace completion ") == ["bash", "zsh"]
    assert complete(script, "millrace help to") == ["top"]
    assert "bash" in complete(script, "millrace run -- bas")
    # Files, which readline completes, and values that nothing completes.
    for line in ("check -c ", "check --config ", "check --config=", "ls x", "bench --steps ", "cat --range 1"):
        assert complete(script, f"millrace {line}") == []


def test_the_build_prints_them_where_shells_and_man_find_them() -> None:
    share = BUILD / "share"
    assert (share / "bash-completion/completions/millrace").read_text() == printed("completion", "bash")
    assert (share / "zsh/site-functions/_millrace").read_text() == printed("completion", "zsh")
    assert (share / "man/man1/millrace.1").read_text() == printed("man")


# ---- the man page ----


def test_the_man_page_has_every_verb_and_option(helps: dict[str, str], options: dict[str, list[str]]) -> None:
    page = printed("man")
    assert page.startswith('.TH MILLRACE 1 "" "millrace ')
    assert re.findall(r"^\.SH (.+)$", page, re.M) == [
        *("NAME", "SYNOPSIS", "DESCRIPTION", "VERBS", "EXIT STATUS", "ENVIRONMENT", "EXAMPLES")
    ]
    sections = dict(re.findall(r"^\.SS (\w+)\n(.*?)(?=^\.S[SH] )", page, re.M | re.S))
    assert list(sections) == list(helps)
    for verb, names in options.items():
        for name in set(names) - {"--help", "-h"}:
            assert f"\\fB{name}\\fR".replace("-", r"\-") in sections[verb], (verb, name)
    for line in page.splitlines():
        assert line and not re.match(r"'|\.(?!(TH|SH|SS|TP|PP|br|ad l|nh)\b)", line), line
        assert not re.search(r"\\(?![-e&]|f[BIR]|\(aq)", line), line


def test_the_man_page_is_set_without_a_warning(tmp_path: Path) -> None:
    groff = shutil.which("groff")
    if not groff:  # what groff would read is checked above
        return
    done = subprocess.run([groff, "-man", "-Tutf8", "-ww"], input=printed("man"), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    text = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
    assert "millrace ls [-l] [-r] [-h] [--limit N] [--json] [-c FILE] URI" in text
    assert "--older-than SECONDS" in text


# ---- arguments ----


@pytest.fixture
def server() -> Iterator[tuple[str, list[int]]]:
    """The URL of a server that is never to be asked, and the connections it got."""
    connections: list[int] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(1)
            connection.close()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", connections
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


WRONG = {
    "cat --range 9-3 gs://bucket/missing": '--range "9-3" ends before it starts',
    "cat --range nine gs://bucket/missing": '--range "nine" is not A-B',
    "cat --rang gs://bucket/missing": '--range "gs://bucket/missing" is not A-B',
    "cat gs://bucket": "gs://bucket names no object",
    "cat gs://bucket/a gs://bucket/b": "2 arguments, and at most 1 are allowed",
    "cat --long gs://bucket/a": "unknown option --long",
    "ls": "an argument is missing: URI",
    "ls http://bucket/a": "the scheme is not gs, s3 or file",
    "ls gs:///a": "names no bucket",
    "ls -lz gs://bucket/": "unknown option -z",
    "ls gs://bucket/ -c": "-c needs a value: -c FILE",
    "cp gs://bucket/ x": "gs://bucket/ names no object",
    "cp gs://bucket/a": "an argument is missing: SRC DST",
    "cp --if-absent=yes gs://bucket/a x": "--if-absent takes no value",
    "rm gs://bucket/a gs://bucket": "gs://bucket names no object; -r deletes everything under it",
    "rm -r ftp://bucket": "the scheme is not",
    "compose gs://bucket/a gs://other/b": "are not in one bucket",
    "compose gs://bucket/a" + " gs://bucket/b" * 33: "34 arguments, and at most 33 are allowed",
    "clean --older-than soon gs://bucket": '--older-than "soon" is not a number',
    "clean --older-than 5 --all gs://bucket": "--older-than and --all exclude each other",
    "doctor gs://bucket ftp://x": "the scheme is not",
    "index gs://bucket/": "add -o FILE",
    "index gs://bucket/ -o x --json": "--json and --output exclude each other",
    "bench --dataset gs://bucket/ --batch-size many": '--batch-size "many" is not a number from 1 to 65536',
    "bench --dataset ftp://bucket/": "--dataset: ",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_arguments_are_told_before_any_request(line: str, server: tuple[str, list[int]], tmp_path: Path) -> None:
    url, connections = server
    done = call(*line.split(" "), STORAGE_EMULATOR_HOST=url)
    verb = line.split(" ")[0]
    assert done.returncode == 2 and done.stdout == ""
    first, *usage = done.stderr.splitlines()
    assert first.startswith(f"millrace {verb}: ") and WRONG[line] in first
    assert usage[0].startswith(f"usage: millrace {verb} ")
    assert usage[-1] == f"'millrace {verb} --help' describes each option."
    assert connections == []


def test_the_server_of_this_test_would_notice_a_request(server: tuple[str, list[int]], tmp_path: Path) -> None:
    url, connections = server
    config = tmp_path / "c.toml"
    config.write_text("[retry]\nattempts = 1\n")
    assert call("cat", "-c", config, "--range", "3-9", "gs://bucket/missing", STORAGE_EMULATOR_HOST=url).returncode == 1
    assert connections


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("ls --json gs://", '"gs://" names no bucket'),
        ("rm --json gs://", '"gs://" names no bucket'),
        ("ls --json --human-readable gs://bucket/", "--human-readable and --json exclude each other"),
    ],
)
def test_with_json_a_wrong_argument_is_json(line: str, error: str) -> None:
    done = call(*line.split(" "))
    assert done.returncode == 2
    assert json.loads(done.stderr) == {"code": "usage", "error": error}


def test_with_json_a_wrong_configuration_is_json() -> None:
    done = call("ls", "--json", "-c", "/nonexistent.toml", "gs://bucket/")
    assert done.returncode == 2
    error = "cannot read the configuration /nonexistent.toml: No such file or directory"
    assert json.loads(done.stderr) == {"code": "configuration", "error": error}


def test_an_unknown_verb() -> None:
    done = call("lst")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "millrace: there is no verb 'lst'; 'millrace --help' lists them\n"
    assert call("help", "lst").returncode == 2


@pytest.fixture
def bucket(devstore: StartDevstore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "root" / "bucket"
    (folder / "sub").mkdir(parents=True)
    (folder / "large").write_bytes(bytes(19_000))
    (folder / "sub" / "small").write_bytes(b"hello")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", devstore("--root", tmp_path / "root").url)


def test_short_and_long_forms_are_the_same(bucket: None, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[retry]\nattempts = 3\n")
    for short, long in (
        ("ls -l gs://bucket/", "ls --long gs://bucket/"),
        ("ls gs://bucket/ -r", "ls --recursive gs://bucket/"),
        ("ls -lrh gs://bucket/", "ls --human-readable gs://bucket/ --long --recursive"),
        (f"ls -qc{config} gs://bucket/", f"ls --quiet --config={config} gs://bucket/"),
        ("cat gs://bucket/sub/small --range 1-3", "cat --range=1-3 gs://bucket/sub/small"),
        (f"check -c {config}", f"check --config {config}"),
        ("clean -n gs://bucket", "clean --dry-run gs://bucket"),
    ):
        one, other = call(*short.split(" ")), call(*long.split(" "))
        assert one.returncode == other.returncode == 0, one.stderr
        assert (one.stdout, one.stderr) == (other.stdout, other.stderr)
    assert printed("cat", "gs://bucket/sub/small", "--range", "1-3") == "ell"


def test_ls_for_people(bucket: None) -> None:
    rows = [line.split("\t") for line in printed("ls", "-lrh", "gs://bucket/").splitlines()]
    assert [(row[0], row[3]) for row in rows] == [("18.6 KiB", "gs://bucket/large"), ("5 B", "gs://bucket/sub/small")]
    exact = [line.split("\t") for line in printed("ls", "-lr", "gs://bucket/").splitlines()]
    assert [row[0] for row in exact] == ["19000", "5"] and [row[1:] for row in exact] == [row[1:] for row in rows]
    assert printed("ls", "-h", "gs://bucket/") == printed("ls", "gs://bucket/")


def test_no_more_lines_than_asked_for(devstore: StartDevstore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "log"
    server = devstore("--memory", "--synthetic", "many:5000:1", "--log", log)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    whole = printed("ls", "-r", "gs://many/").splitlines()
    log.write_text("")
    for limit in (1, 3, 1500):
        assert printed("ls", "-r", "--limit", str(limit), "gs://many/").splitlines() == whole[:limit]
    assert log.read_text().count("\n") == 4  # pages are of 1,000
    assert "maxResults=3" in log.read_text()
    assert printed("ls", "--limit", "1", whole[7]).splitlines() == [whole[7]]
    assert log.read_text().count("\n") == 5  # it is there: nothing is listed


@pytest.mark.parametrize("scheme", ["gs", "s3", "file"])
def test_ls_for_programs(bucket: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", os.environ["STORAGE_EMULATOR_HOST"])
    for name, value in (("ACCESS_KEY_ID", "id"), ("SECRET_ACCESS_KEY", "secret"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    folder = f"file://{tmp_path}/root/bucket" if scheme == "file" else f"{scheme}://bucket"
    listed = [json.loads(line) for line in printed("ls", "--json", f"{folder}/").splitlines()]
    assert [entry["uri"] for entry in listed] == [f"{folder}/large", f"{folder}/sub/"]
    assert listed[1].keys() == {"uri"}
    (looked_up,) = (json.loads(line) for line in printed("ls", "--json", f"{folder}/large").splitlines())
    for entry in (listed[0], looked_up):
        assert entry["size"] == 19_000 and entry["generation"] > 0
        assert abs(entry["created"] - time.time()) < 3600
        assert ("crc32c" in entry) == (scheme == "gs" or (scheme == "s3" and entry is looked_up))
    assert ("etag" in looked_up) == (scheme != "file")


def test_a_range_after_the_end(bucket: None) -> None:
    done = call("cat", "--range", "5-", "gs://bucket/sub/small")
    assert done.returncode == 2 and "starts after the end: the object has 5 bytes" in done.stderr
