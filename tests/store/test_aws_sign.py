"""The signer of requests to AWS and S3, against botocore's and against the suite that AWS publishes.

The suite is not in this tree: MILLRACE_SIGV4_SUITE names a checkout of it (awslabs/aws-c-auth, the folder
tests/aws-signing-test-suite/v4). Without it that one test is left out.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import posixpath
import random
import re
import subprocess
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest

from tests.conftest import BIN

PROGRAM = BIN / "millrace-test-aws-sign"
SUITE = os.environ.get("MILLRACE_SIGV4_SUITE", "")
DATE = "20150830T123600Z"
KEYS = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")


@dataclass
class Request:
    method: str
    url: str
    lines: list[str] = field(default_factory=list)
    body: str = ""
    payload: str = ""
    token: str = ""
    access: str = KEYS[0]
    secret: str = KEYS[1]
    region: str = "us-east-1"
    service: str = "service"
    date: str = DATE

    def record(self) -> str:
        fields = [self.access, self.secret, self.token, self.region, self.service, self.method, self.url, self.date]
        return "".join(f"{one}\x1f" for one in [*fields, self.payload, self.body, *self.lines]) + "\x1e"


def sign(requests: Sequence[Request]) -> list[str]:
    text = "".join(request.record() for request in requests)
    run = subprocess.run([PROGRAM], input=text.encode(), capture_output=True, check=True)
    return run.stdout.decode().splitlines()


def suite_path(path: str, normalize: bool) -> str:
    """As a client of such a service sends it; S3's sends what it has."""
    if normalize:
        slash = "/" if path.endswith(("/", "/.", "/..")) else ""
        path = "/" + posixpath.normpath(path).lstrip("/.")
        path += slash if path != "/" else ""
    return urllib.parse.quote(path, safe="/%-._~")


def suite_case(folder: Path) -> tuple[Request, str]:
    context = json.loads((folder / "context.json").read_text())
    head, _, body = (folder / "request.txt").read_text().partition("\n\n")
    first, *rest = head.rstrip("\n").split("\n")
    found = re.match(r"(\w+) (.*) HTTP/1.1$", first)
    assert found, first
    lines: list[str] = []
    for line in rest:
        if line[0] in " \t":
            lines[-1] += "\n" + line
        else:
            lines.append(line)
    host = next(line.split(":", 1)[1].strip() for line in lines if line.lower().startswith("host:"))
    path, _, query = found[2].partition("?")
    query = urllib.parse.quote(query, safe="%=&-._~")
    keys = context["credentials"]
    request = Request(
        found[1],
        f"https://{host}{suite_path(path, context['normalize'])}" + (f"?{query}" if query else ""),
        [line for line in lines if not line.lower().startswith("host:")],
        body,
        token="" if context.get("omit_session_token") else keys.get("token", ""),
        access=keys["access_key_id"],
        secret=keys["secret_access_key"],
        region=context["region"],
        service=context["service"],
        date=re.sub("[-:]", "", context["timestamp"]),
    )
    if context["sign_body"]:
        canonical = (folder / "header-canonical-request.txt").read_text()
        request.lines.append("x-amz-content-sha256: " + canonical.rsplit("\n", 1)[1])
    return request, (folder / "header-signature.txt").read_text().strip()


@pytest.mark.skipif(not SUITE, reason="MILLRACE_SIGV4_SUITE names no checkout of the published suite")
def test_published_suite() -> None:
    folders = sorted(folder for folder in Path(SUITE).iterdir() if (folder / "context.json").exists())
    assert len(folders) >= 30
    cases = [suite_case(folder) for folder in folders]
    signed = sign([request for request, _ in cases])
    wrong = [
        folder.name
        for folder, line, (_, signature) in zip(folders, signed, cases)
        if not line.endswith(f"Signature={signature}")
    ]
    assert not wrong, f"{len(wrong)} of {len(folders)} are wrong: {wrong}"


def by_botocore(request: Request) -> str:
    """The signature of botocore's signer for S3."""
    credentials = botocore.credentials.Credentials(request.access, request.secret, request.token or None)
    headers = dict(line.split(": ", 1) for line in request.lines)
    sent = botocore.awsrequest.AWSRequest(request.method, request.url, headers, request.body.encode())
    now = datetime.datetime(2015, 8, 30, 12, 36)
    with mock.patch.object(botocore.auth, "get_current_datetime", lambda: now):
        botocore.auth.S3SigV4Auth(credentials, "s3", request.region).add_auth(sent)
    return str(sent.headers["Authorization"])


def random_request(rng: random.Random) -> Request:
    letters = "abz09-._~ +/&=?%#\u00e9\u4e2d\u202f'()*!@$,;:"

    def word(most: int) -> str:
        return "".join(rng.choice(letters) for _ in range(rng.randint(1, most)))

    def encoded(text: str, safe: str = "") -> str:
        return urllib.parse.quote(text, safe=safe + "-._~")

    key = word(30)
    pairs = {encoded(word(8)): encoded(word(8)) for _ in range(rng.randint(0, 4))}
    query = "&".join(f"{name}={value}" for name, value in pairs.items())
    host = rng.choice(["bucket.s3.eu-west-1.amazonaws.com", "127.0.0.1:9000", "host:80", "host:443"])
    scheme = rng.choice(["http", "https"])
    body = word(50) if rng.random() < 0.5 else ""
    lines = [f"x-amz-meta-{i}: {rng.choice(['a', 'b  c', ' d'])}" for i in range(rng.randint(0, 3))]
    return Request(
        rng.choice(["GET", "PUT", "DELETE", "POST", "HEAD"]),
        f"{scheme}://{host}/{encoded(key, '/')}" + (f"?{query}" if query else ""),
        lines,
        body,
        token=encoded(word(30)) if rng.random() < 0.5 else "",
        secret=word(90).encode("ascii", "ignore").decode() or "s",  # one that is longer than a block too
        region=rng.choice(["eu-west-1", "auto", "us-east-1"]),
        service="s3",
    )


def test_as_botocore() -> None:
    rng = random.Random(12)
    requests = [random_request(rng) for _ in range(400)]
    wanted = [by_botocore(request) for request in requests]
    for request in requests:
        content = hashlib.sha256(request.body.encode()).hexdigest()
        request.lines.append(f"x-amz-content-sha256: {content}")
    for request, line, theirs in zip(requests, sign(requests), wanted):
        assert line == theirs, request


def test_what_cannot_be_signed() -> None:
    no_host, no_colon = Request("GET", "not a URL"), Request("GET", "http://h/", ["no colon"])
    lines = Request("GET", "http://h/", [f"a{i}: b" for i in range(35)])
    query = Request("GET", "http://h/?" + "&".join(f"a{i}=b" for i in range(40)))
    answers = sign([no_host, no_colon, lines, query])
    assert '"not a URL" is not the URL of an AWS service' in answers[0]
    assert "a bad line" in answers[1]
    assert "too many header lines" in answers[2]
    assert "more than 32 parameters" in answers[3]
