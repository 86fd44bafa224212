"""The AWS chain against scripted services, and against the keys that botocore takes there."""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import random
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.config
import botocore.credentials
import botocore.session
import botocore.tokens
import pytest

from tests.conftest import BIN
from tests.store.aws_cases import BROKEN, CONTAINER, ENV, FILE, IMDS, LEGACY, OTHER, SAME, SSO, Case, role
from tests.store.aws_cloud import ROLE, SECRETS, Cloud, ends, sts_error

PROGRAM = BIN / "millrace-test-aws-keys"


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    server = Cloud()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith(("AWS_", "BOTO_")):
            monkeypatch.delenv(name)
    cache = tmp_path / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(botocore.credentials.SSOProvider, "_SSO_TOKEN_CACHE_DIR", str(cache))
    monkeypatch.setattr(botocore.tokens.SSOTokenProvider, "_SSO_TOKEN_CACHE_DIR", str(cache))
    return tmp_path


def login(home: Path, name: str, **more: Any) -> Path:
    file = home / ".aws" / "sso" / "cache" / (hashlib.sha1(name.encode()).hexdigest() + ".json")
    value = {"startUrl": "https://s", "region": "us-east-2", "accessToken": "login-1", "expiresAt": ends(), **more}
    file.write_text(json.dumps({key: item for key, item in value.items() if item is not None}))
    return file


def renewable(left_s: float = 300) -> dict[str, Any]:
    return {
        "expiresAt": ends(left_s),
        "clientId": "client",
        "clientSecret": "client-secret",
        "refreshToken": "refresh-1",
        "registrationExpiresAt": ends(9e6),
    }


def set_up(case: Case, cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(text: str) -> str:
        return text.replace("{url}", cloud.url).replace("{home}", str(home))

    (home / "web").write_text("web-token")
    (home / "empty").write_text("")
    (home / "other").write_text(f"[default]\n{OTHER}")
    program = home / "program"
    program.write_text('#!/bin/sh\n[ "$2" = "a b" ] && [ "$3" = "c d" ] && printf "%s" "$1"\n')
    program.chmod(0o755)
    if case.config:
        (home / ".aws" / "config").write_text(fill(case.config), newline="")
    if case.credentials:
        (home / ".aws" / "credentials").write_text(fill(case.credentials), newline="")
    for service in ("STS", "SSO", "SSO_OIDC") if "services" not in case.config else ():
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", cloud.url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
    for name, value in case.environment.items():
        monkeypatch.setenv(name, fill(value))
    if "https://other" not in case.config:
        login(home, "corp")
        login(home, "https://s")


def ours(profile: str = "", what: str = "keys", region: str = "") -> dict[str, Any]:
    arguments = [*([profile] if profile else []), *([region] if region else [])]
    done = subprocess.run([PROGRAM, what, *arguments], capture_output=True, text=True, timeout=100, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def botocores(profile: str = "") -> dict[str, Any] | None:
    session = botocore.session.Session(profile=profile or None)
    session.set_default_client_config(botocore.config.Config(retries={"max_attempts": 1}))
    found = session.get_credentials()
    if found is None:
        return None
    keys = found.get_frozen_credentials()
    return {"access_key": keys.access_key, "secret_key": keys.secret_key, "token": keys.token}


def forms(cloud: Cloud) -> list[dict[str, str]]:
    """What was asked of STS, without the names that each client makes up."""
    return [
        {k: v for k, v in form.items() if k != "RoleSessionName" or v == "me"}
        for form in cloud.asked("/")
        if "Action" in form
    ]


@pytest.mark.parametrize("case", SAME, ids=lambda case: case.name)
def test_same_keys_as_botocore(case: Case, cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(case, cloud, home, monkeypatch)
    found = ours(case.profile)
    assert "error" not in found, found
    assert found["access_key"] == case.takes
    asked = forms(cloud)
    cloud.seen.clear()
    theirs = botocores(case.profile)
    assert {key: found[key] for key in ("access_key", "secret_key", "token")} == theirs
    assert asked == forms(cloud)
    assert found["secret_key"] not in found["described"]


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_broken(case: Case, cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(case, cloud, home, monkeypatch)
    found = ours(case.profile)
    assert case.says.replace("{home}", str(home)) in found.get("error", ""), found
    assert found["code"] == "denied"
    assert not any(secret in found["error"] for secret in SECRETS.values())
    if case.boto_takes:
        return
    try:
        theirs = botocores(case.profile)
    except Exception:  # each has a class of its own
        return
    assert theirs is None or case.name == "no-profile"  # that one it says when a client is made


# ---- STS ----


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("AccessDenied", "the role's trust policy must allow these keys sts:AssumeRole"),
        ("ExpiredToken", "the keys of the source have ended"),
        ("RegionDisabledException", "STS is not active in this region"),
        ("InvalidClientTokenId", "the keys of the source do not exist"),
        ("ValidationError", "correct role_arn, role_session_name or duration_seconds"),
    ],
)
def test_role_is_refused(code: str, advice: str, cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(next(case for case in SAME if case.name == "role"), cloud, home, monkeypatch)
    cloud.script["/"] = [(403, sts_error(code, "Not today &amp; not here"))]
    text = ours()["error"]
    assert f'the role {ROLE}/r of profile "default" ({home}/.aws/config, line 2): the role {ROLE}/r is refused' in text
    assert f"{code}: Not today & not here (HTTP status 403); {advice}" in text


def test_signature_is_refused(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(next(case for case in SAME if case.name == "role"), cloud, home, monkeypatch)
    (home / ".aws" / "credentials").write_text(f"[b]\n{FILE}".replace("file/secret", "wrong"))
    assert "SignatureDoesNotMatch" in ours()["error"]
    assert "the secret key of the source is wrong" in ours()["error"]


@pytest.mark.parametrize("answer", ["", "hello", "<a><b></a>", "<AssumeRoleResponse/>", "<a>" * 40, "<AccessKeyId>x"])
def test_sts_answers_nonsense(answer: str, cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(next(case for case in SAME if case.name == "web"), cloud, home, monkeypatch)
    cloud.script["/"] = [(200, answer)]
    assert f"the answer of {cloud.url} has no keys: is it the Security Token Service?" in ours()["error"]


def test_sts_refuses_without_a_word(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(next(case for case in SAME if case.name == "web"), cloud, home, monkeypatch)
    cloud.script["/"] = [(403, "")]
    assert f"no keys of the role from {cloud.url}/: HTTP status 403" in ours()["error"]


def test_sts_is_asked_again(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(next(case for case in SAME if case.name == "web"), cloud, home, monkeypatch)
    cloud.script["/"] = [
        (500, ""),
        (400, sts_error("Throttling", "Rate exceeded")),
        (400, sts_error("IDPCommunicationError", "")),
    ]
    assert ours()["access_key"] == "ASIAweb"


def test_sts_throttles(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than one call asks again: the requests that wait for the keys ask again, too."""
    set_up(next(case for case in SAME if case.name == "web"), cloud, home, monkeypatch)
    cloud.script["/"] = [(400, sts_error("Throttling", "Rate exceeded"))] * 5
    assert ours()["code"] == "busy"


def test_sts_names_the_clock(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(next(case for case in SAME if case.name == "role"), cloud, home, monkeypatch)
    cloud.script["/"] = [
        (403, sts_error("SignatureDoesNotMatch", "Signature expired: 20260101T000000Z is now earlier"))
    ]
    assert ours()["error"].endswith("; set this machine's clock")


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("ExpiredTokenException", "the token in the file has ended: what writes it must run"),
        ("InvalidIdentityToken", "the token is not of a provider that this account knows"),
        ("AccessDenied", "the role's trust policy must allow this identity provider"),
    ],
)
def test_web_identity_is_refused(
    code: str, advice: str, cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(next(case for case in SAME if case.name == "web"), cloud, home, monkeypatch)
    cloud.script["/"] = [(400, sts_error(code, "x"))]
    assert f"{code}: x (HTTP status 400); {advice}" in ours()["error"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://sts.example.com", "is http:// on another machine: its answers hold keys"),
        ("sts.example.com", "is not an http or https URL"),
    ],
)
def test_endpoint_in_clear_text(url: str, says: str, cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(next(case for case in SAME if case.name == "web"), cloud, home, monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
    assert f'the endpoint of sts, "{url}", {says}' in ours()["error"]


# ---- SSO ----


def test_sso_login_is_renewed(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(Case("", config=SSO), cloud, home, monkeypatch)
    file = login(home, "corp", **renewable())
    assert ours("sso")["token"] == "of-login-renewed"
    (asked,) = cloud.asked("/token")
    assert asked == {
        "grantType": "refresh_token",
        "clientId": "client",
        "clientSecret": "client-secret",
        "refreshToken": "refresh-1",
    }
    left = json.loads(file.read_text())
    assert (left["accessToken"], left["refreshToken"]) == ("login-renewed", "next-refresh")
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir() if path.suffix != ".json"] == []
    theirs = botocores("sso")  # reads what we left, and need not renew it
    assert theirs
    assert (theirs["token"], len(cloud.asked("/token"))) == ("of-login-renewed", 1)


def test_sso_login_cannot_be_renewed(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(Case("", config=SSO), cloud, home, monkeypatch)
    refusal = (400, {"error": "invalid_grant", "error_description": "Invalid refresh token provided"})
    login(home, "corp", **renewable())
    cloud.script["/token"] = [refusal, refusal]
    assert ours("sso")["token"] == "of-login-1"  # good for some minutes
    login(home, "corp", **renewable(-1))
    text = ours("sso")["error"]
    assert "the login of SSO cannot be renewed (no login of SSO from" in text
    assert "invalid_grant: Invalid refresh token provided" in text
    assert text.endswith("run aws sso login --profile sso")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"expiresAt": ends(-1)}, "the login of SSO has ended: run aws sso login --profile default"),
        ({"expiresAt": ends(-1, "%Y-%m-%dT%H:%M:%SUTC")}, "the login of SSO has ended: run"),
        ({"accessToken": "of-another"}, "the login of SSO has ended, or was ended: run aws sso login"),
        ({"expiresAt": None}, "is not a login of SSO: it has no accessToken and expiresAt"),
        ({"expiresAt": "tomorrow"}, "is not a login of SSO"),
        ({"accessToken": 7.5}, "the login of SSO has ended, or was ended"),
    ],
)
def test_sso_login_is_no_good(
    more: dict[str, Any], says: str, cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(Case("", config=LEGACY), cloud, home, monkeypatch)
    login(home, "https://s", **more)
    assert says in ours()["error"]


def test_sso_role_is_not_given(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(Case("", config=LEGACY), cloud, home, monkeypatch)
    cloud.script["/federation/credentials"] = [(403, {"message": "No access"}), (200, {"roleCredentials": {}})]
    text = ours()["error"]
    assert "the role Read of account 0042 is not given to this user: correct sso_role_name and sso_account_id" in text
    assert "No access" in text
    assert "has no keys: is it the portal of IAM Identity Center?" in ours()["error"]


# ---- the instance, and containers ----


def test_instance_without_version_2(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(Case("", environment=IMDS), cloud, home, monkeypatch)
    cloud.script["/latest/api/token"] = [(404, ""), (403, "")]
    assert ours()["access_key"] == "ASIAIMDS"
    assert all("x-aws-ec2-metadata-token" not in headers for _, _, headers, _ in cloud.seen)
    monkeypatch.setenv("AWS_EC2_METADATA_V1_DISABLED", "true")
    assert "has no version 2 (HTTP status 403), and version 1 is turned off" in ours()["error"]


def test_instance_does_not_answer(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container where the hop limit is 1: there is a connection, and no answer comes through it."""
    set_up(Case("", environment={**IMDS, "AWS_METADATA_SERVICE_TIMEOUT": "1"}), cloud, home, monkeypatch)
    cloud.silent.set()
    assert ours()["access_key"] == "ASIAIMDS" == (botocores() or {})["access_key"]  # by version 1
    cloud.only_v2 = True
    assert "--http-put-response-hop-limit 2" in ours()["error"]
    cloud.only_v2 = False
    monkeypatch.setenv("AWS_EC2_METADATA_V1_DISABLED", "true")
    assert "--http-put-response-hop-limit 2" in ours()["error"]


def test_instance_is_not_there(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(Case("", environment=IMDS), cloud, home, monkeypatch)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    text = ours()["error"]
    assert "no metadata service at http://127.0.0.1:9 (" in text
    assert "correct or unset AWS_EC2_METADATA_SERVICE_ENDPOINT" in text


def test_no_instance(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the address of IPv6, which no machine has that runs tests."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "IPv6")
    text = ours()["error"]
    assert text.startswith("no credentials: none in the environment, in ~/.aws or of a container, and no metadata")
    assert "service at http://[fd00:ec2::254] (" in text
    assert '[s3] auth = "anonymous" for a public bucket' in text


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        ("/latest/api/token", (200, "a b"), "gives no session token: is it one?"),
        ("/latest/meta-data/iam/security-credentials/", (404, ""), "this instance has no role: attach an instance"),
        ("/latest/meta-data/iam/security-credentials/", (200, ""), "this instance has no role: attach an instance"),
        ("/latest/meta-data/iam/security-credentials/", (200, "<html> x"), "names no role"),
        (
            "/latest/meta-data/iam/security-credentials/the-role",
            (200, {"Code": "AssumeRoleUnauthorizedAccess", "Message": "EC2 cannot assume the role"}),
            "has no AccessKeyId and SecretAccessKey: EC2 cannot assume the role",
        ),
        ("/latest/meta-data/iam/security-credentials/the-role", (200, "hello"), "is not JSON"),
    ],
)
def test_instance_answers_nonsense(
    path: str, answer: tuple[int, Any], says: str, cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(Case("", environment=IMDS), cloud, home, monkeypatch)
    cloud.script[path] = [answer]
    assert says in ours()["error"]


def test_instance_gives_old_keys(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service could not renew them: they are used, and asked for again soon."""
    set_up(Case("", environment=IMDS), cloud, home, monkeypatch)
    old = {"AccessKeyId": "ASIAOLD", "SecretAccessKey": "s", "Token": "t", "Expiration": ends(-60)}
    cloud.script["/latest/meta-data/iam/security-credentials/the-role"] = [(200, old)]
    found = ours()
    assert found["access_key"] == "ASIAOLD"
    assert "good for 9 min" in found["described"] or "good for 10 min" in found["described"]


def test_container_fails(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(Case("", environment=CONTAINER), cloud, home, monkeypatch)
    cloud.script["/container"] = [(503, ""), (400, {"message": "no task"})]
    text = ours()["error"]
    assert text.startswith(f"the container's credentials (AWS_CONTAINER_CREDENTIALS_*_URI): no keys from {cloud.url}")
    assert "no task (HTTP status 400)" in text


# ---- files ----


def test_file_that_cannot_be_read(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its default place it is left out, as in a container whose HOME is another user's; a named one is an error."""
    file = home / ".aws" / "credentials"
    file.mkdir()
    why = f"{file} cannot be read: Is a directory"
    for text in (ours()["error"], ours("x")["error"]):
        assert text.startswith(f"{why}: ")
    set_up(Case("", environment=ENV), cloud, home, monkeypatch)
    assert ours()["access_key"] == "AKIAENV" == (botocores() or {})["access_key"]
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    text = ours()["error"]
    assert why in text and "AWS_SHARED_CREDENTIALS_FILE" in text


def test_a_role_s_keys_are_of_the_region_that_is_configured(
    cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of the global STS are not valid in regions that are off by default, nor in China."""
    case = Case("", config=f"[default]\n{role('r', 'source_profile = b')}[profile b]\n{FILE}")
    set_up(case, cloud, home, monkeypatch)
    for region, signed_for in (("", "us-east-2"), ("cn-north-1", "cn-north-1")):
        cloud.seen.clear()
        assert ours("default", region=region)["access_key"] == "ASIAr"
        (asked,) = [headers["authorization"] for _, _, headers, form in cloud.seen if "Action" in form]
        assert f"/{signed_for}/sts/aws4_request" in asked


def test_chosen_profile_is_missing(home: Path) -> None:
    assert 'there is no profile "x"' in ours("x")["error"]
    assert "correct the configured profile" in ours("x")["error"]
    assert 'there is no profile "x"' in ours("x", "settings")["error"]


LINES = [
    "[a]", "[b]", "[profile a]", "[profile 'x y']", "[ a ]", "[DEFAULT]", "[a] # x", "[a", "[]",
    "k = 1", "k=2=3", "l : 4", "K:5", "m n = 6 # x", "  k = 7", "\tl = 8", "l =", "s3 =", "s3=", " s3 = x ",
    "  more", "    more = 1", "   x = 1", "\tx=1", "# c", "  ; c", "", "", "   ", "word", "= 9", ": 9", "\u00e9 = 1",
]  # fmt: skip


def by_configparser(text: str) -> dict[str, str | None] | None:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except configparser.Error:
        return None
    values = {
        f"{section}/{key}": parser.get(section, key, fallback=None)
        for section in ("a", "b", "profile a", "profile 'x y'", " a ")
        if section in parser.sections()
        for key in ("k", "l", "m n", "s3")
    }
    for section in parser.sections():
        for value in parser[section].values():
            if value.startswith("\n") and any("=" not in line for line in value.split("\n") if line):
                return None
    return values


def test_files_are_read_as_by_configparser(tmp_path: Path) -> None:
    draw = random.Random(12)
    texts = []
    for number in range(1500):
        lines = [draw.choice(LINES) for _ in range(draw.randrange(10))]
        end = draw.choice(["\n", "\n", "\r\n"])
        texts.append(end.join(["[b]", *lines]) if number % 4 else end.join(lines))
        (tmp_path / str(number)).write_text(texts[-1], newline="")
    files = [str(number) for number in range(len(texts))]
    done = subprocess.run([PROGRAM, "ini", *files], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [by_configparser((tmp_path / file).read_text()) for file in files]
    assert found == expected
    assert sum(each is None for each in expected) < len(texts) * 3 // 4  # there was something to read


# ---- settings ----

SERVICES = "[services mine]\ns3 =\n  endpoint_url = http://config-s3\n  other = 1\nsts =\n  endpoint_url = http://x\n"


@pytest.mark.parametrize(
    ("config", "environment", "region", "endpoint"),
    [
        ("", {}, None, None),
        ("[default]\nregion = eu-west-1\n", {}, "eu-west-1", None),
        ("[default]\nregion = eu-west-1\n", {"AWS_DEFAULT_REGION": "us-west-2"}, "us-west-2", None),
        ("[profile a]\nregion = r\nendpoint_url = http://p\n", {"AWS_PROFILE": "a"}, "r", "http://p"),
        ("[default]\nendpoint_url = http://p\n", {"AWS_ENDPOINT_URL": "http://e"}, None, "http://e"),
        ("", {"AWS_ENDPOINT_URL": "http://e", "AWS_ENDPOINT_URL_S3": "http://s"}, None, "http://s"),
        (f"[default]\nservices = mine\nendpoint_url = http://p\n{SERVICES}", {}, None, "http://config-s3"),
        (f"[default]\nservices = mine\n{SERVICES}", {"AWS_ENDPOINT_URL": "http://e"}, None, "http://e"),
        (
            "[default]\nservices = mine\nendpoint_url = http://p\n[services mine]\nsts =\n  endpoint_url = http://x\n",
            {},
            None,
            "http://p",
        ),
        ("", {"AWS_ENDPOINT_URL": "http://e", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}, None, None),
        ("[default]\nendpoint_url = http://p\nignore_configured_endpoint_urls = true\n", {}, None, None),
    ],
)
def test_same_settings_as_botocore(
    config: str,
    environment: dict[str, str],
    region: str | None,
    endpoint: str | None,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (home / ".aws" / "config").write_text(config)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = ours(what="settings")
    assert (found["region"], found["endpoint_url"], found["ca_bundle"]) == (region, endpoint, None)
    session = botocore.session.Session()
    assert session.get_config_variable("region") == region
    client = session.create_client("s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    assert (endpoint or "https://s3.") in client.meta.endpoint_url


@pytest.mark.parametrize("style", [None, "auto", "path", "virtual"])
@pytest.mark.parametrize("endpoint", ["", "endpoint_url = http://store.example.org\n"])
def test_same_address_as_botocore(style: str | None, endpoint: str, home: Path) -> None:
    """A bucket's own host, or the bucket in the path."""
    lines = f"s3 =\n  max_queue_size = 5\n  addressing_style = {style}\n" if style else ""
    (home / ".aws" / "config").write_text(f"[default]\n{endpoint}{lines}use_fips_endpoint = false\n")
    found = ours(what="settings")
    assert (found["addressing"], found["fips"]) == (style, None)
    session = botocore.session.Session()
    client = session.create_client("s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    theirs = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "key"})
    by_path = style == "path" or (bool(endpoint) and style != "virtual")  # as is_path_style in s3_place.c
    assert ("//bucket." not in theirs) == by_path
    (home / ".aws" / "config").write_text("[default]\nuse_fips_endpoint = true\n")
    assert ours(what="settings")["fips"] == "true"


def test_region_and_bundle(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_REGION comes first, as in AWS's other clients; botocore does not know it."""
    (home / ".aws" / "config").write_text("[default]\nca_bundle = ~/ca.pem\n")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    found = ours(what="settings")
    assert (found["region"], found["endpoint_url"], found["ca_bundle"]) == ("eu-west-1", None, f"{home}/ca.pem")
    monkeypatch.setenv("AWS_CA_BUNDLE", "/ca")
    assert ours(what="settings")["ca_bundle"] == "/ca"
