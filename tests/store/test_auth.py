"""Application Default Credentials against a scripted token server, and against google-auth reading the same files."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import os
import stat
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import google.auth.aws
import google.auth.external_account_authorized_user
import google.auth.identity_pool
import google.auth.impersonated_credentials
import google.auth.jwt
import google.auth.transport.requests
import google.oauth2.credentials
import google.oauth2.service_account
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.conftest import BIN

STORAGE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
CLOUD_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
EMAIL = "loader@project.iam.gserviceaccount.com"
SECRETS = ["GOCSPX-client-secret", "1//refresh-token", "subject-token-of-a-file", "aws/secret/key", "PRIVATE KEY"]

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PRIVATE_PEM = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()
PUBLIC_PEM = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class Cloud(http.server.ThreadingHTTPServer):
    """A bucket with one object, a token server, a metadata server, an identity provider: what each was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.good = {"storage-token-1"}  # tokens that the bucket takes
        self.token = "storage-token-1"
        self.expires_in: Any = 3600
        self.flavor = "Google"
        self.script: dict[str, list[tuple[int, Any]]] = {}  # path -> answers before the good one
        self.seen: list[tuple[str, dict[str, str], dict[str, str]]] = []  # path, headers, form or JSON
        self.held: set[str] = set()  # paths whose next request is answered only after 13 s, or at `released`
        self.released = threading.Event()
        self.at: dict[str, Callable[[], object]] = {}  # path -> what happens at its next request
        self.turned_away = 0  # so many more connections are closed at once

    def verify_request(self, request: Any, client_address: Any) -> bool:
        self.turned_away -= 1
        return self.turned_away < 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def asked(self, path: str) -> list[tuple[dict[str, str], dict[str, Any]]]:
        return [(headers, body) for at, headers, body in self.seen if at.split("?")[0] == path]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Cloud

    def do_GET(self) -> None:
        self.handle_any()

    do_POST = do_PUT = do_GET

    def handle_any(self) -> None:
        cloud = self.server
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        path = self.path.split("?")[0]
        headers = {name.lower(): value for name, value in self.headers.items()}
        body: dict[str, Any] = dict(urllib.parse.parse_qsl(raw))
        if headers.get("content-type") == "application/json" and raw:
            body = json.loads(raw)
        cloud.seen.append((self.path, headers, body))
        if path in cloud.at:
            cloud.at.pop(path)()
        if path in cloud.held:
            cloud.held.remove(path)
            cloud.released.wait(13)
        if cloud.script.get(path):
            self.say(*cloud.script[path].pop(0))
        elif path.startswith("/storage/"):
            self.storage(headers)
        elif path in ("/token", "/sts") or path.endswith("/default/token"):
            if headers.get("metadata-flavor", "Google") != "Google" or (
                path.startswith("/computeMetadata") and "metadata-flavor" not in headers
            ):
                self.say(403, {})
            else:
                token = {"access_token": cloud.token, "expires_in": cloud.expires_in, "token_type": "Bearer"}
                self.say(200, token)
        elif path == "/":
            self.say(200, {})
        elif path.endswith(":generateAccessToken"):
            end = datetime.now(timezone.utc) + timedelta(hours=1)
            self.say(200, {"accessToken": "impersonated", "expireTime": end.strftime("%Y-%m-%dT%H:%M:%SZ")})
        elif path == "/subject":
            self.say(200, {"value": "subject-token-of-a-url"})
        elif path == "/aws/token":
            self.say(200, "imds-session")
        elif path == "/aws/zone":
            self.say(200, "us-east-2b")
        elif path == "/aws/role":
            self.say(200, "the-role")
        elif path == "/aws/role/the-role":
            self.say(200, {"AccessKeyId": "AKIDIMDS", "SecretAccessKey": "imds/secret", "Token": "imds-token"})
        else:
            self.say(404, {})

    def storage(self, headers: dict[str, str]) -> None:
        if headers.get("authorization", "").removeprefix("Bearer ") not in self.server.good:
            self.say(401, {"error": {"code": 401, "message": "Invalid Credentials"}})
        elif "alt=media" in self.path:
            self.say(200, "hello")
        else:
            self.say(200, {"name": "a", "size": "5", "generation": "1"})

    def say(self, status: int, body: Any) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Metadata-Flavor", self.server.flavor)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    server = Cloud()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("GOOGLE_", "AWS_", "CLOUDSDK_", "GCE_", "KUBERNETES_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


def run(cloud: Cloud, tmp_path: Path, config: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "millrace.toml"
    file.write_text(f'[gcs]\nendpoint = "{cloud.url}"\n{config}')
    done = subprocess.run(
        [BIN / "millrace", "cat", "-c", file, "gs://bucket/a"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    for secret in [*SECRETS, cloud.token]:
        assert secret not in done.stderr, "a secret in a message"
    return done


def works(cloud: Cloud, tmp_path: Path, config: str = "", **environment: str) -> None:
    done = run(cloud, tmp_path, config, **environment)
    assert (done.returncode, done.stdout) == (0, "hello"), done.stderr


def write(tmp_path: Path, content: Any) -> str:
    file = tmp_path / "credentials.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    file.chmod(0o644)
    return str(file)


def service_account(cloud: Cloud) -> dict[str, Any]:
    return {
        "type": "service_account",
        "project_id": "project",
        "private_key_id": "key-1",
        "private_key": PRIVATE_PEM,
        "client_email": EMAIL,
        "client_id": "1234",
        "token_uri": f"{cloud.url}/token",
    }


def user(cloud: Cloud) -> dict[str, Any]:
    return {
        "type": "authorized_user",
        "client_id": "id.apps.googleusercontent.com",
        "client_secret": "GOCSPX-client-secret",
        "refresh_token": "1//refresh-token",
        "quota_project_id": "billed",
        "token_uri": f"{cloud.url}/token",
    }


def external(cloud: Cloud, source: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{cloud.url}/sts",
        "credential_source": source,
        **more,
    }


def impersonation_url(cloud: Cloud) -> str:
    return f"{cloud.url}/v1/projects/-/serviceAccounts/{EMAIL}:generateAccessToken"


def google_credentials(path: str, cloud: Cloud) -> Any:
    """google-auth's reading of the same file. It has its own token endpoint for some types: ours is put there."""
    info = json.loads(Path(path).read_text())
    kind = info["type"]
    if kind == "service_account":
        return google.oauth2.service_account.Credentials.from_service_account_info(info, scopes=[STORAGE_SCOPE])
    if kind == "authorized_user":
        credentials = google.oauth2.credentials.Credentials.from_authorized_user_info(info)
        credentials._token_uri = info["token_uri"]
        return credentials
    if kind == "impersonated_service_account":
        credentials = google.auth.impersonated_credentials.Credentials.from_impersonated_service_account_info(
            info, scopes=[STORAGE_SCOPE]
        )
        credentials._source_credentials._token_uri = f"{cloud.url}/token"
        credentials._iam_endpoint_override = info["service_account_impersonation_url"]
        return credentials
    if kind == "external_account_authorized_user":
        return google.auth.external_account_authorized_user.Credentials.from_info(info)
    module = google.auth.aws if "environment_id" in info["credential_source"] else google.auth.identity_pool
    return module.Credentials.from_info(info, scopes=[STORAGE_SCOPE])


def google_auth(path: str, cloud: Cloud) -> None:
    google_credentials(path, cloud).refresh(google.auth.transport.requests.Request())


def same_but(ours: dict[str, Any], theirs: dict[str, Any], *different: str) -> None:
    assert {k: v for k, v in ours.items() if k not in different} == {
        k: v for k, v in theirs.items() if k not in different
    }


# ---- each type ----


def test_service_account(cloud: Cloud, tmp_path: Path) -> None:
    path = write(tmp_path, service_account(cloud))
    began = int(time.time())
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    google_auth(path, cloud)
    (_, ours), (_, theirs) = cloud.asked("/token")
    same_but(ours, theirs, "assertion")
    claims = [google.auth.jwt.decode(body["assertion"], certs=PUBLIC_PEM) for body in (ours, theirs)]
    same_but(claims[0], claims[1], "iat", "exp", "aud")  # google-auth always names Google's own token server
    assert claims[0]["aud"] == f"{cloud.url}/token"
    assert claims[0]["exp"] - claims[0]["iat"] == 3600
    assert began <= claims[0]["iat"] <= time.time()
    assert claims[0]["scope"] == STORAGE_SCOPE
    assert google.auth.jwt.decode_header(ours["assertion"]) == google.auth.jwt.decode_header(theirs["assertion"])


def test_authorized_user_and_quota_project(cloud: Cloud, tmp_path: Path) -> None:
    path = write(tmp_path, user(cloud))
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    google_auth(path, cloud)
    (_, ours), (_, theirs) = cloud.asked("/token")
    same_but(ours, theirs)
    for headers, _ in cloud.asked("/storage/v1/b/bucket/o/a"):
        assert headers["x-goog-user-project"] == "billed"
    cloud.seen.clear()
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path, GOOGLE_CLOUD_QUOTA_PROJECT="other")
    assert cloud.asked("/storage/v1/b/bucket/o/a")[0][0]["x-goog-user-project"] == "other"
    cloud.seen.clear()
    works(cloud, tmp_path, 'user_project = "explicit"', GOOGLE_APPLICATION_CREDENTIALS=path)
    assert "x-goog-user-project" not in cloud.asked("/storage/v1/b/bucket/o/a")[0][0]


@pytest.mark.parametrize(("change", "second"), [({"refresh_token": "1//refresh-token-2"}, "-2"), ({"type": ""}, "")])
def test_a_file_that_is_replaced_meanwhile(cloud: Cloud, tmp_path: Path, change: dict[str, str], second: str) -> None:
    """The token that it gave last is refused. One that cannot be used leaves what was read before."""
    cloud.good = {"storage-token-2"}
    cloud.script["/token"] = [(200, {"access_token": f"storage-token-{i}", "expires_in": 3600}) for i in (1, 2)]
    path = write(tmp_path, user(cloud))
    cloud.at["/token"] = lambda: write(tmp_path, {**user(cloud), **change})
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    tokens = [body["refresh_token"] for _, body in cloud.asked("/token")]
    assert tokens == ["1//refresh-token", f"1//refresh-token{second}"]


def workforce_user(cloud: Cloud) -> dict[str, Any]:
    return {
        **{key: user(cloud)[key] for key in ("client_id", "client_secret", "refresh_token")},
        "type": "external_account_authorized_user",
        "audience": "//iam.googleapis.com/locations/global/workforcePools/p/providers/q",
        "token_url": f"{cloud.url}/sts",
    }


def test_a_user_of_a_workforce_pool(cloud: Cloud, tmp_path: Path) -> None:
    path = write(tmp_path, workforce_user(cloud))
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    google_auth(path, cloud)
    (our_headers, ours), (their_headers, theirs) = cloud.asked("/sts")
    same_but(ours, theirs)
    assert our_headers["authorization"] == their_headers["authorization"]
    cloud.seen.clear()
    cloud.good = {"storage-token-2"}
    first = {"access_token": "storage-token-1", "expires_in": 3600, "refresh_token": "1//refresh-token-2"}
    cloud.script["/sts"] = [(200, first), (200, {"access_token": "storage-token-2", "expires_in": 3600})]
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    assert [body["refresh_token"] for _, body in cloud.asked("/sts")] == ["1//refresh-token", "1//refresh-token-2"]


def test_the_file_of_gcloud_is_found(cloud: Cloud, tmp_path: Path) -> None:
    (tmp_path / "gcloud").mkdir()
    (tmp_path / "gcloud" / "application_default_credentials.json").write_text(json.dumps(user(cloud)))
    works(cloud, tmp_path)
    home = tmp_path / "home" / ".config"
    home.mkdir(parents=True)
    (tmp_path / "gcloud").rename(home / "gcloud")
    works(cloud, tmp_path, CLOUDSDK_CONFIG="", HOME=str(tmp_path / "home"))


def test_metadata_server(cloud: Cloud, tmp_path: Path) -> None:
    works(cloud, tmp_path, NO_GCE_CHECK="false", GCE_METADATA_HOST=cloud.host)
    path = "/computeMetadata/v1/instance/service-accounts/default/token"
    assert [headers["metadata-flavor"] for headers, _ in cloud.asked(path)] == ["Google"]
    asked = [at for at, _, _ in cloud.seen if at != "/"]
    assert asked[0] == f"{path}?scopes={urllib.parse.quote(STORAGE_SCOPE, safe='')}"


@pytest.mark.parametrize("form", ["text", "json"])
def test_external_account_file(cloud: Cloud, tmp_path: Path, form: str) -> None:
    token = tmp_path / "subject"
    source: dict[str, Any] = {"file": str(token)}
    token.write_text("subject-token-of-a-file")
    if form == "json":
        token.write_text(json.dumps({"id": 7, "access": "subject-token-of-a-file"}))
        source["format"] = {"type": "json", "subject_token_field_name": "access"}
    path = write(tmp_path, external(cloud, source))
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    google_auth(path, cloud)
    (_, ours), (_, theirs) = cloud.asked("/sts")
    same_but(ours, theirs)
    assert ours["subject_token"] == "subject-token-of-a-file"


def test_external_account_url_with_impersonation(cloud: Cloud, tmp_path: Path) -> None:
    source = {
        "url": f"{cloud.url}/subject",
        "headers": {"X-Wanted": "yes"},
        "format": {"type": "json", "subject_token_field_name": "value"},
    }
    more = {
        "service_account_impersonation_url": impersonation_url(cloud),
        "service_account_impersonation": {"token_lifetime_seconds": 1800},
        "client_id": "pool",
        "client_secret": "GOCSPX-client-secret",
    }
    cloud.good = {"impersonated"}
    path = write(tmp_path, external(cloud, source, **more))
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    google_auth(path, cloud)
    assert [headers["x-wanted"] for headers, _ in cloud.asked("/subject")] == ["yes", "yes"]
    (our_headers, ours), (their_headers, theirs) = cloud.asked("/sts")
    same_but(ours, theirs, "scope")  # google-auth asks for .../auth/iam, the API takes either
    assert ours["scope"] == CLOUD_SCOPE
    assert our_headers["authorization"] == their_headers["authorization"]
    (our_headers, ours), (_, theirs) = cloud.asked(urllib.parse.urlsplit(impersonation_url(cloud)).path)
    assert our_headers["authorization"] == "Bearer storage-token-1"
    assert ours["lifetime"] == "1800s" and ours["scope"] == theirs["scope"] == [STORAGE_SCOPE]


def executable(tmp_path: Path, script: str) -> Path:
    program = tmp_path / "give token"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def response(**more: Any) -> str:
    return json.dumps(
        {
            "version": 1,
            "success": True,
            "token_type": "urn:ietf:params:oauth:token-type:jwt",
            "id_token": "subject-token-of-a-file",
            "expiration_time": int(time.time()) + 6 * 3600,
            **more,
        }
    )


def test_external_account_executable(cloud: Cloud, tmp_path: Path) -> None:
    seen, output = tmp_path / "seen", tmp_path / "output"
    program = executable(tmp_path, f"env > {seen}; echo \"$2\" >> {seen}; echo '{response()}' | tee {output}")
    command = f'"{program}" --for "two words"'
    more = {"service_account_impersonation_url": impersonation_url(cloud)}
    source = {"executable": {"command": command, "timeout_millis": 60000, "output_file": str(output)}}
    path = write(tmp_path, external(cloud, source, **more))
    cloud.good = {"impersonated"}
    allow = {"GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES": "1"}
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path, **allow)
    lines = seen.read_text().splitlines()
    audience = json.loads(Path(path).read_text())["audience"]
    assert f"GOOGLE_EXTERNAL_ACCOUNT_AUDIENCE={audience}" in lines
    assert "GOOGLE_EXTERNAL_ACCOUNT_TOKEN_TYPE=urn:ietf:params:oauth:token-type:jwt" in lines
    assert "GOOGLE_EXTERNAL_ACCOUNT_INTERACTIVE=0" in lines
    assert f"GOOGLE_EXTERNAL_ACCOUNT_IMPERSONATED_EMAIL={EMAIL}" in lines
    assert f"GOOGLE_EXTERNAL_ACCOUNT_OUTPUT_FILE={output}" in lines
    assert "GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES=1" in lines  # of ours: a wrapper may be a client of Google's too
    assert lines[-1] == "two words"
    seen.unlink()
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path, **allow)  # output_file is still good
    assert not seen.exists()
    output.write_text(response(expiration_time=1))
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path, **allow)
    assert seen.exists()
    seen.unlink()
    output.write_text(response(expiration_time=None))  # of nobody knows when
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path, **allow)
    assert seen.exists()
    assert {body["subject_token"] for _, body in cloud.asked("/sts")} == {"subject-token-of-a-file"}
    refused = run(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    assert refused.returncode != 0 and "GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES=1" in refused.stderr


def test_what_an_executable_may_leave_out(cloud: Cloud, tmp_path: Path) -> None:
    """As Google's own clients take it: id_token for jwt, and no end where it prints its answer."""
    answer = response(token_type="urn:ietf:params:oauth:token-type:id_token", expiration_time=None)
    program = executable(tmp_path, f"echo '{answer}'")
    source = {"command": f'"{program}"', "output_file": str(tmp_path / "output")}
    path = write(tmp_path, external(cloud, {"executable": source}))
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path, GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES="1")


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("exit 3", "exit status 3"),
        ("kill -9 $$", "signal 9"),
        ("true", "printed nothing"),
        ("echo nonsense", "not JSON"),
        ('echo \'{"version":2,"success":true}\'', "version 2"),
        ('echo \'{"version":1,"success":false,"code":"401","message":"log in first"}\'', "401: log in first"),
        ('echo \'{"version":1,"success":true,"token_type":"x","id_token":"y"}\'', "token of type x"),
        (f"echo '{response(expiration_time=1)}'", "has expired"),
        (f"echo '{response(id_token='')}'", "gives no token"),
        ("sleep 60", "did not end within 5000 ms"),
    ],
)
def test_broken_executable(cloud: Cloud, tmp_path: Path, script: str, text: str) -> None:
    command = f'"{executable(tmp_path, script)}"'
    patience_ms = 1 if "sleep" in script else 60000  # 5000 is the least
    path = write(tmp_path, external(cloud, {"executable": {"command": command, "timeout_millis": patience_ms}}))
    done = run(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path, GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES="1")
    assert done.returncode != 0 and text in done.stderr


AWS_SOURCE = {
    "environment_id": "aws1",
    "regional_cred_verification_url": "https://sts.{region}.amazonaws.com?Version=2011-06-15&Action=GetCallerIdentity",
}


@pytest.mark.parametrize("session", ["session/token+=", ""])
def test_external_account_aws_environment(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    path = write(
        tmp_path, external(cloud, AWS_SOURCE, subject_token_type="urn:ietf:params:aws:token-type:aws4_request")
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws/secret/key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    if session:
        monkeypatch.setenv("AWS_SESSION_TOKEN", session)
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    ours = cloud.asked("/sts")[0][1]
    signed = json.loads(urllib.parse.unquote(ours["subject_token"]))
    date = next(pair["value"] for pair in signed["headers"] if pair["key"] == "x-amz-date")
    moment = datetime.strptime(date, "%Y%m%dT%H%M%SZ")
    monkeypatch.setattr("google.auth._helpers.utcnow", lambda: moment)  # the same second, so the same signature
    credentials = google_credentials(path, cloud)
    theirs = credentials.retrieve_subject_token(google.auth.transport.requests.Request())
    theirs_signed = json.loads(urllib.parse.unquote(theirs))
    key = lambda pair: pair["key"]  # noqa: E731
    assert sorted(signed.pop("headers"), key=key) == sorted(theirs_signed.pop("headers"), key=key)
    assert signed == theirs_signed
    assert ours["subject_token_type"] == "urn:ietf:params:aws:token-type:aws4_request"


def test_external_account_aws_instance(cloud: Cloud, tmp_path: Path) -> None:
    source = {
        **AWS_SOURCE,
        "region_url": f"{cloud.url}/aws/zone",
        "url": f"{cloud.url}/aws/role",
        "imdsv2_session_token_url": f"{cloud.url}/aws/token",
    }
    path = write(tmp_path, external(cloud, source))
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    for at in ("/aws/zone", "/aws/role", "/aws/role/the-role"):
        assert cloud.asked(at)[0][0]["x-aws-ec2-metadata-token"] == "imds-session"
    signed = json.loads(urllib.parse.unquote(cloud.asked("/sts")[0][1]["subject_token"]))
    assert signed["url"].startswith("https://sts.us-east-2.amazonaws.com?")
    headers = {pair["key"]: pair["value"] for pair in signed["headers"]}
    assert "Credential=AKIDIMDS/" in headers["Authorization"]
    assert headers["x-amz-security-token"] == "imds-token"


@pytest.mark.parametrize("kind", ["user", "service_account"])
def test_impersonated_service_account(cloud: Cloud, tmp_path: Path, kind: str) -> None:
    content = {
        "type": "impersonated_service_account",
        "service_account_impersonation_url": impersonation_url(cloud),
        "delegates": ["middle@project.iam.gserviceaccount.com"],
        "source_credentials": user(cloud) if kind == "user" else service_account(cloud),
    }
    cloud.good = {"impersonated"}
    path = write(tmp_path, content)
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    google_auth(path, cloud)
    (our_headers, ours), (their_headers, theirs) = cloud.asked(urllib.parse.urlsplit(impersonation_url(cloud)).path)
    assert our_headers["authorization"] == their_headers["authorization"] == "Bearer storage-token-1"
    assert ours["delegates"] == ["projects/-/serviceAccounts/middle@project.iam.gserviceaccount.com"]
    same_but(ours, theirs, "delegates")
    if kind == "service_account":
        assertion = cloud.asked("/token")[0][1]["assertion"]
        assert google.auth.jwt.decode(assertion, certs=PUBLIC_PEM)["scope"] == CLOUD_SCOPE


def test_anonymous_and_emulator(cloud: Cloud, tmp_path: Path) -> None:
    cloud.good = {""}
    path = write(tmp_path, user(cloud))
    works(cloud, tmp_path, 'auth = "anonymous"', GOOGLE_APPLICATION_CREDENTIALS=path)
    file = tmp_path / "empty.toml"
    file.write_text("")
    done = subprocess.run(
        [BIN / "millrace", "cat", "-c", file, "gs://bucket/a"],
        env={**os.environ, "STORAGE_EMULATOR_HOST": cloud.host, "GOOGLE_APPLICATION_CREDENTIALS": path},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == "hello", done.stderr
    assert not any("authorization" in headers for _, headers, _ in cloud.seen)
    assert not cloud.asked("/token")


# ---- answers that are no token ----


@pytest.mark.parametrize(
    "answer",
    [
        (500, "oops"),
        (503, {}),
        (429, {}),
        (408, {}),
        (400, {"error": "temporarily_unavailable"}),
        (400, {"error": "internal_failure"}),
        (400, {"error": "server_error"}),
    ],
    ids=str,
)
def test_token_server_is_asked_again(cloud: Cloud, tmp_path: Path, answer: tuple[int, Any]) -> None:
    cloud.script["/token"] = [answer]
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=write(tmp_path, user(cloud)))
    assert len(cloud.asked("/token")) == 2


def test_a_401_makes_a_new_token_once(cloud: Cloud, tmp_path: Path) -> None:
    path = write(tmp_path, user(cloud))
    cloud.script["/storage/v1/b/bucket/o/a"] = [(401, {})]
    works(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    assert len(cloud.asked("/token")) == 2
    cloud.good = set()
    cloud.seen.clear()
    done = run(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    assert done.returncode != 0 and "Invalid Credentials" in done.stderr
    assert len(cloud.asked("/token")) == 2 and len(cloud.asked("/storage/v1/b/bucket/o/a")) == 2


LONG_TOKEN = base64.urlsafe_b64encode(hashlib.sha512(b"t").digest()).decode()
REFUSALS = [
    ("user", 400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."},
     ["expired or was revoked", "gcloud auth application-default login"]),
    ("user", 401, {"error": "invalid_client"}, ["client_id", "gcloud auth application-default login"]),
    ("user", 400, {"error": "invalid_scope", "error_description": f"no {LONG_TOKEN} here"},
     ["invalid_scope: no [...]"]),
    ("user", 200, {"token": 1}, ["no access_token"]),
    ("user", 200, {"access_token": "a\nb"}, ["no access_token"]),
    ("user", 200, "<html>", ["no access_token"]),
    ("service", 400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."},
     ["key key-1 of " + EMAIL, "deleted or revoked", "gcloud iam service-accounts keys create"]),
    ("service", 400, {"error": "invalid_grant", "error_description": "Invalid JWT: Token must be a short-lived token "
     "(60 minutes) and in a reasonable timeframe. Check your iat and exp values in the JWT claim."},
     ["the machine's clock", "timedatectl"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "status", "answer", "texts"), REFUSALS)
def test_refusals_say_what_to_do(
    cloud: Cloud, tmp_path: Path, kind: str, status: int, answer: Any, texts: list[str]
) -> None:
    path = write(tmp_path, user(cloud) if kind == "user" else service_account(cloud))
    cloud.script["/token"] = [(status, answer)] * 9
    done = run(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    assert done.returncode != 0 and LONG_TOKEN not in done.stderr
    assert len(cloud.asked("/token")) == 1
    for text in texts:
        assert text in done.stderr


def test_refused_impersonation(cloud: Cloud, tmp_path: Path) -> None:
    at = urllib.parse.urlsplit(impersonation_url(cloud)).path
    cloud.script[at] = [(403, {"error": {"code": 403, "message": "Permission denied on resource"}})]
    content = {
        "type": "impersonated_service_account",
        "service_account_impersonation_url": impersonation_url(cloud),
        "source_credentials": user(cloud),
    }
    done = run(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=write(tmp_path, content))
    assert done.returncode != 0 and "Permission denied on resource" in done.stderr
    assert "roles/iam.serviceAccountTokenCreator" in done.stderr


def test_refused_subject_token(cloud: Cloud, tmp_path: Path) -> None:
    token = tmp_path / "subject"
    token.write_text("subject-token-of-a-file")
    path = write(tmp_path, external(cloud, {"file": str(token)}))
    cloud.script["/sts"] = [(400, {"error": "invalid_grant", "error_description": "The audience does not match"})]
    done = run(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    assert "The audience does not match" in done.stderr and "subject_token_type" in done.stderr
    token.write_text("")
    assert "holds no subject token" in run(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path).stderr
    token.unlink()
    assert "cannot be read" in run(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path).stderr


def test_the_first_probe_of_a_silent_metadata_server(cloud: Cloud, tmp_path: Path) -> None:
    cloud.held.add("/")
    works(cloud, tmp_path, NO_GCE_CHECK="false", GCE_METADATA_HOST=cloud.host)
    cloud.released.set()
    assert len(cloud.asked("/")) >= 2  # the first one was given up after 3 s, long before its answer


def test_a_pod_is_there_before_its_metadata_server(cloud: Cloud, tmp_path: Path) -> None:
    cloud.turned_away = 3
    assert "no metadata server" in run(cloud, tmp_path, NO_GCE_CHECK="false", GCE_METADATA_HOST=cloud.host).stderr
    cloud.turned_away = 4
    works(cloud, tmp_path, NO_GCE_CHECK="false", GCE_METADATA_HOST=cloud.host, KUBERNETES_SERVICE_HOST="10.0.0.1")


def test_no_metadata_server(cloud: Cloud, tmp_path: Path) -> None:
    nowhere = {"NO_GCE_CHECK": "false", "GCE_METADATA_HOST": "127.0.0.1:1"}
    done = run(cloud, tmp_path, **nowhere)
    assert done.returncode != 0
    for text in ("gcloud auth application-default login", "GOOGLE_APPLICATION_CREDENTIALS", "127.0.0.1:1"):
        assert text in done.stderr
    cloud.flavor = "Other"
    done = run(cloud, tmp_path, NO_GCE_CHECK="false", GCE_METADATA_HOST=cloud.host)
    assert "not a metadata server" in done.stderr
    cloud.flavor = "Google"
    cloud.script["/computeMetadata/v1/instance/service-accounts/default/token"] = [(404, {})]
    done = run(cloud, tmp_path, NO_GCE_CHECK="false", GCE_METADATA_HOST=cloud.host)
    assert "no service account" in done.stderr
    done = run(cloud, tmp_path)
    assert "NO_GCE_CHECK" in done.stderr and "gcloud auth application-default login" in done.stderr


# ---- broken files ----

BROKEN = [
    ("", "not a JSON object"),
    ("[]", "not a JSON object"),
    ('{"type": "service_account"', "not a JSON object"),
    ("{}", 'no "type"'),
    ({"installed": {"client_id": "x"}}, 'no "type"'),
    ({"type": "gdch_service_account"}, "none of service_account"),
    ({"type": 7}, '"type" is not a string'),
    ({"type": "service_account", "client_email": "x", "token_uri": "https://x"}, 'no "private_key"'),
    ({"type": "service_account", "client_email": "x", "token_uri": "https://x", "private_key": "nonsense"},
     "not an RSA key"),
    ({"type": "service_account", "client_email": "x", "token_uri": "ftp://x", "private_key": "k"}, "http or https"),
    ({"type": "authorized_user", "client_id": "x"}, 'no "client_secret"'),
    ({"type": "external_account_authorized_user", "client_id": "x", "client_secret": "y", "refresh_token": "z"},
     'no "token_url"'),
    ({"type": "external_account_authorized_user", "client_id": "x", "client_secret": "y", "refresh_token": "z",
      "token_url": "http://example.com/"}, "read by others"),
    ({"type": "external_account", "audience": "x"}, 'no "subject_token_type"'),
    ({"type": "external_account", "audience": "x", "subject_token_type": "y", "token_url": "http://z",
      "credential_source": {}}, "exactly one of"),
    ({"type": "external_account", "audience": "x", "subject_token_type": "y", "token_url": "http://z",
      "credential_source": {"environment_id": "aws2"}}, "aws1"),
    ({"type": "external_account", "audience": "x", "subject_token_type": "y", "token_url": "http://z",
      "credential_source": {"file": "/x", "format": {"type": "json"}}}, "subject_token_field_name"),
    ({"type": "external_account", "audience": "x", "subject_token_type": "y", "token_url": "http://z",
      "credential_source": {"file": "/x", "format": {"type": "xml"}}}, "neither text nor json"),
    ({"type": "external_account", "audience": "x", "subject_token_type": "y", "token_url": "http://z",
      "credential_source": {"url": "http://z", "headers": {"a b": "c"}}}, "an object of header names and values"),
    ({"type": "external_account", "audience": "x", "subject_token_type": "y", "token_url": "http://z",
      "credential_source": {"url": "http://z", "headers": {f"h{i}": "c" for i in range(99)}}}, '"headers"'),
    ({"type": "authorized_user", "client_id": "x", "client_secret": "y", "refresh_token": "z",
      "quota_project_id": "a\r\nb"}, '"quota_project_id" is not the name of a project'),
    ({"type": "impersonated_service_account", "delegates": [1]}, "a list of strings"),
    ({"type": "impersonated_service_account", "delegates": [f"d{i}" for i in range(99)]}, '"delegates"'),
    ("{} {}", "more after the end"),
    ('{"type" 1}', "a colon was expected"),
    ('{"a": 1 "b": 2}', "a comma or a closing bracket was expected"),
    ('{"type": "a\\q"}', "an unknown escape"),
    ('{"type": "\\ud800x"}', "half of a surrogate pair"),
    ('{"type": "a\tb"}', "a control byte in a string"),
    ('{"type": "a', "the text ends inside a string"),
    ({"type": "impersonated_service_account", "service_account_impersonation_url": "https://x"},
     'no "source_credentials"'),
    ({"type": "impersonated_service_account", "service_account_impersonation_url": "https://x",
      "source_credentials": {"type": "authorized_user"}}, 'source_credentials: it is of type authorized_user'),
]  # fmt: skip


@pytest.mark.parametrize(("content", "text"), BROKEN)
def test_broken_files(cloud: Cloud, tmp_path: Path, content: Any, text: str) -> None:
    path = write(tmp_path, content)
    done = run(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=path)
    assert done.returncode != 0 and text in done.stderr and path in done.stderr
    assert not cloud.seen


def test_missing_file(cloud: Cloud, tmp_path: Path) -> None:
    done = run(cloud, tmp_path, GOOGLE_APPLICATION_CREDENTIALS=str(tmp_path / "none.json"))
    assert done.returncode != 0
    for text in ("none.json: there is no such file", "GOOGLE_APPLICATION_CREDENTIALS", "gcloud auth"):
        assert text in done.stderr
