"""All that gives AWS keys, scripted: STS, SSO, a container's agent, the metadata service of an instance."""

from __future__ import annotations

import http.server
import json
import threading
import urllib.parse
from datetime import datetime, timedelta, timezone
from typing import Any

import botocore.auth
import botocore.awsrequest
import botocore.credentials

ROLE = "arn:aws:iam::123456789012:role"
SECRETS = {"AKIAENV": "env/secret", "AKIAFILE": "file/secret", "AKIAOTHER": "other/secret", "ASIACONT": "cont/secret"}
SECRETS |= {"ASIAIMDS": "imds/secret", "AKIAPROC": "process/secret"}


def ends(seconds: float = 3600, form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).strftime(form)


def secret_of(access_key: str) -> str:
    return SECRETS.get(access_key, f"secret/of/{access_key}")


class Cloud(http.server.ThreadingHTTPServer):
    """All that gives keys, and what each was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: dict[str, list[tuple[int, Any]]] = {}  # path -> answers before the good one
        self.seen: list[tuple[str, str, dict[str, str], dict[str, str]]] = []  # method, path, headers, form
        self.silent = threading.Event()  # set: the metadata service takes a PUT and says nothing
        self.only_v2 = False  # of the metadata service
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def asked(self, path: str) -> list[dict[str, str]]:
        return [form for _, at, _, form in self.seen if at.split("?")[0] == path]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Cloud

    def do_GET(self) -> None:
        cloud = self.server
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        path = self.path.split("?")[0]
        headers = {name.lower(): value for name, value in self.headers.items()}
        form = json.loads(raw) if raw.startswith("{") else dict(urllib.parse.parse_qsl(raw))
        cloud.seen.append((self.command, self.path, headers, form))
        if cloud.script.get(path):
            self.say(*cloud.script[path].pop(0))
        elif path == "/" and form.get("Action", "").startswith("AssumeRole"):
            self.sts(headers, form, raw)
        elif path == "/federation/credentials":
            query = dict(urllib.parse.parse_qsl(self.path.split("?")[1]))
            token = headers["x-amz-sso_bearer_token"]
            key = f"ASIA{query['role_name']}{query['account_id']}"
            value = {
                "accessKeyId": key,
                "secretAccessKey": secret_of(key),
                "sessionToken": f"of-{token}",
                "expiration": int((datetime.now().timestamp() + 3600) * 1000),
            }
            self.say(200 if token.startswith("login") else 401, {"roleCredentials": value})
        elif path == "/token":
            self.say(200, {"accessToken": "login-renewed", "expiresIn": 28800, "refreshToken": "next-refresh"})
        elif path == "/container":
            value = {"AccessKeyId": "ASIACONT", "SecretAccessKey": "cont/secret", "Expiration": ends()}
            self.say(200, {**value, "Token": "cont-" + headers.get("authorization", "none").replace(" ", "+")})
        elif path == "/latest/api/token":
            if cloud.silent.is_set():
                cloud.over.wait(60)
            self.say(200, "session-of-imds")
        elif path.startswith("/latest/meta-data/") and cloud.only_v2 and "x-aws-ec2-metadata-token" not in headers:
            self.say(401, "")
        elif path == "/latest/meta-data/iam/security-credentials/":
            self.say(200, "the-role")
        elif path == "/latest/meta-data/iam/security-credentials/the-role":
            good = headers.get("x-aws-ec2-metadata-token", "session-of-imds") == "session-of-imds"
            value = {"Code": "Success", "AccessKeyId": "ASIAIMDS", "SecretAccessKey": "imds/secret"}
            self.say(200 if good else 401, {**value, "Token": "imds-token", "Expiration": ends(20000)})
        else:
            self.say(404, {})

    do_POST = do_PUT = do_GET

    def sts(self, headers: dict[str, str], form: dict[str, str], raw: str) -> None:
        """The keys are named after the role; those of AssumeRole are given to a right signature only."""
        inside = headers.get("x-amz-security-token", "")
        if form["Action"] == "AssumeRole":
            given = headers["authorization"]
            signed = dict(part.strip().split("=", 1) for part in given.split(" ", 1)[1].split(","))
            access_key, _, region, service, _ = signed["Credential"].split("/")
            assert service == "sts"
            names = signed["SignedHeaders"].split(";")
            request = botocore.awsrequest.AWSRequest(
                "POST", self.server.url + "/", {name: headers[name] for name in names}, raw
            )
            request.context["timestamp"] = headers["x-amz-date"]
            keys = botocore.credentials.Credentials(access_key, secret_of(access_key))
            auth = botocore.auth.SigV4Auth(keys, service, region)
            text = auth.string_to_sign(request, auth.canonical_request(request))
            if auth.signature(text, request) != signed["Signature"]:
                self.error(403, "SignatureDoesNotMatch", "The request signature does not match")
                return
        else:
            inside = form["WebIdentityToken"]
        key = "ASIA" + form["RoleArn"].split("/")[-1]
        action = form["Action"]
        self.say(
            200,
            f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result><AssumedRoleUser>'
            f"<AssumedRoleId>AROA:s</AssumedRoleId><Arn>{form['RoleArn']}</Arn></AssumedRoleUser><Credentials>"
            f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret_of(key)}</SecretAccessKey>"
            f"<SessionToken>role-over-{inside}</SessionToken><Expiration>{ends()}</Expiration></Credentials>"
            f"</{action}Result></{action}Response>",
        )

    def error(self, status: int, code: str, message: str) -> None:
        self.say(status, sts_error(code, message))

    def say(self, status: int, body: Any) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if data.startswith(b"<"):
            self.send_header("Content-Type", "text/xml")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def sts_error(code: str, message: str) -> str:
    error = f"<Type>Sender</Type><Code>{code}</Code><Message>{message}</Message>"
    return f"<ErrorResponse><Error>{error}</Error></ErrorResponse>"
