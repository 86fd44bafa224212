"""S3's clients of the development store: boto3, and requests that are signed here, rightly or wrongly."""

from __future__ import annotations

import datetime
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote
from xml.etree import ElementTree

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.conftest import Server
from tests.devstore.conftest import Reply, fetch

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
NOTHING = hashlib.sha256(b"").hexdigest()


def client(server: Server, host: str = "", style: str = "path", **options: Any) -> Any:
    """boto3's, which repeats nothing."""
    config = Config(s3={"addressing_style": style}, retries={"total_max_attempts": 1}, **options.pop("config", {}))
    return boto3.client(
        "s3",
        endpoint_url=f"http://{host}:{server.port}" if host else server.url,
        **{
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
            "region_name": "us-east-1",
            "config": config,
            **options,
        },
    )


def refusal(error: ClientError) -> tuple[int, str]:
    """Status and code."""
    return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]


def xml(reply: Reply, name: str) -> list[str]:
    """The texts of the elements of that name in the reply."""
    return [e.text or "" for e in ElementTree.fromstring(reply.body).iter() if e.tag.rpartition("}")[2] == name]


def code(reply: Reply) -> tuple[int, str]:
    return reply.status, xml(reply, "Code")[0]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")


@dataclass
class Signer:
    """Signatures of version 4, written from their description."""

    key: str = KEY
    secret: str = SECRET
    region: str = "us-east-1"
    service: str = "s3"
    date: str = field(default_factory=now)
    token: str = ""
    last: str = ""
    """The signature that was made last."""

    @property
    def scope(self) -> str:
        return f"{self.date[:8]}/{self.region}/{self.service}/aws4_request"

    def mac(self, text: str) -> str:
        key = b"AWS4" + self.secret.encode()
        for part in self.scope.split("/"):
            key = hmac.new(key, part.encode(), "sha256").digest()
        self.last = hmac.new(key, text.encode(), "sha256").hexdigest()
        return self.last

    def request(self, method: str, target: str, headers: dict[str, str], payload: str) -> str:
        path, _, query = target.partition("?")
        pairs = sorted((quote(k, "~"), quote(v, "~")) for k, v in parse_qsl(query, True))
        names = sorted(name.lower() for name in headers)
        values = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
        text = "\n".join(
            [method, path, "&".join(f"{k}={v}" for k, v in pairs)]
            + [f"{name}:{values[name]}" for name in names]
            + ["", ";".join(names), payload]
        )
        return self.mac(f"AWS4-HMAC-SHA256\n{self.date}\n{self.scope}\n{sha256(text.encode())}")

    def headers(
        self, server: Server, method: str, target: str, payload: str, more: dict[str, str] | None = None
    ) -> dict[str, str]:
        """Those of a signed request; a Host among `more` stands for the server's."""
        headers = {"Host": f"127.0.0.1:{server.port}", "x-amz-date": self.date, "x-amz-content-sha256": payload}
        headers |= {"x-amz-security-token": self.token} if self.token else {}
        headers |= more or {}
        signature = self.request(method, target, headers, payload)
        names = ";".join(sorted(name.lower() for name in headers))
        claim = f"Credential={self.key}/{self.scope}, SignedHeaders={names}, Signature={signature}"
        return {**headers, "Authorization": f"AWS4-HMAC-SHA256 {claim}"}

    def chunk(self, data: bytes) -> bytes:
        """One of an aws-chunked body, after the signature that was made last."""
        text = f"AWS4-HMAC-SHA256-PAYLOAD\n{self.date}\n{self.scope}\n{self.last}\n{NOTHING}\n{sha256(data)}"
        head = f"{len(data):x};chunk-signature={self.mac(text)}\r\n".encode()
        return head + data + (b"\r\n" if data else b"")

    def trailer(self, lines: str) -> bytes:
        text = f"AWS4-HMAC-SHA256-TRAILER\n{self.date}\n{self.scope}\n{self.last}\n{sha256(lines.encode())}"
        signature = f"x-amz-trailer-signature:{self.mac(text)}\n"
        return (lines + signature).replace("\n", "\r\n").encode()


def send(
    server: Server,
    method: str,
    target: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    signer: Signer | None = None,
    payload: str | None = None,
) -> Reply:
    """A signed request."""
    by = (signer or Signer()).headers(server, method, target, payload or sha256(body), headers)
    return fetch(server, target, method, body, by)


def s3(server: Server, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Reply:
    """One that is not signed, and says by a header whose it is."""
    return fetch(server, target, method, body, {"x-amz-date": "", **(headers or {})})
