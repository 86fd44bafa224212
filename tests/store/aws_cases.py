"""Environments and files of the AWS tools: which keys are taken, or what is said of those that are broken."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.store.aws_cloud import ROLE


@dataclass
class Case:
    name: str
    config: str = ""
    credentials: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    profile: str = ""
    takes: str = ""  # the access key; "": none
    says: str = ""  # where there is none: in our message
    boto_takes: bool = False  # botocore takes what we refuse, or asks a person


ENV = {"AWS_ACCESS_KEY_ID": "AKIAENV", "AWS_SECRET_ACCESS_KEY": "env/secret"}
FILE = "aws_access_key_id = AKIAFILE\naws_secret_access_key = file/secret\n"
OTHER = "aws_access_key_id = AKIAOTHER\naws_secret_access_key = other/secret\n"
WEB = {"AWS_WEB_IDENTITY_TOKEN_FILE": "{home}/web", "AWS_ROLE_ARN": f"{ROLE}/web"}
CONTAINER = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "{url}/container"}
IMDS = {
    "AWS_EC2_METADATA_DISABLED": "false",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": "{url}",
    "AWS_METADATA_SERVICE_TIMEOUT": "60",  # of ours and botocore's: the server is in the test's process
}
SSO = (
    "[profile sso]\nsso_session = corp\nsso_account_id = 0042\nsso_role_name = Read\n"
    "[sso-session corp]\nsso_start_url = https://s\nsso_region = us-east-2\n"
)
LEGACY = "[default]\nsso_start_url = https://s\nsso_region = us-east-2\nsso_account_id = 0042\nsso_role_name = Read\n"


def process(text: str) -> str:
    return f"[default]\ncredential_process = {{home}}/program '{text}' \"a b\" c\\ d\n"


PROCESS = '{"Version": 1, "AccessKeyId": "AKIAPROC", "SecretAccessKey": "process/secret", "SessionToken": "t"}'


def role(name: str, more: str) -> str:
    return f"role_arn = {ROLE}/{name}\n{more}\n"


# What we and botocore must both find.
SAME = [
    Case("environment", environment=ENV, credentials=f"[default]\n{FILE}", takes="AKIAENV"),
    Case("session-token", environment={**ENV, "AWS_SESSION_TOKEN": "t"}, takes="AKIAENV"),
    Case("security-token", environment={**ENV, "AWS_SESSION_TOKEN": "t", "AWS_SECURITY_TOKEN": "s"}, takes="AKIAENV"),
    Case(
        "empty-variable",
        environment={**ENV, "AWS_ACCESS_KEY_ID": ""},
        credentials=f"[default]\n{FILE}",
        takes="AKIAFILE",
    ),
    Case("expires", environment={**ENV, "AWS_CREDENTIAL_EXPIRATION": "2099-01-02T03:04:05Z"}, takes="AKIAENV"),
    Case(
        "environment-over-profile", environment={**ENV, "AWS_PROFILE": "a"}, credentials=f"[a]\n{FILE}", takes="AKIAENV"
    ),
    Case("named-profile-over-environment", environment=ENV, profile="a", credentials=f"[a]\n{FILE}", takes="AKIAFILE"),
    Case("profile", environment={"AWS_PROFILE": "a"}, credentials=f"[default]\n{OTHER}[a]\n{FILE}", takes="AKIAFILE"),
    Case(
        "older-profile",
        environment={"AWS_PROFILE": "a", "AWS_DEFAULT_PROFILE": "b"},
        credentials=f"[a]\n{OTHER}[b]\n{FILE}",
        takes="AKIAFILE",
    ),
    Case("credentials-over-config", config=f"[default]\n{OTHER}", credentials=f"[default]\n{FILE}", takes="AKIAFILE"),
    Case("config", config=f"[default]\n{FILE}", takes="AKIAFILE"),
    Case("config-profile", config=f"[profile a]\n{FILE}", profile="a", takes="AKIAFILE"),
    Case("config-quoted", config=f'[profile "a b"]\n{FILE}', profile="a b", takes="AKIAFILE"),
    Case("profile-default", config=f"[default]\n{OTHER}[profile default]\n{FILE}", takes="AKIAFILE"),
    Case("default-last", config=f"[profile default]\n{OTHER}[default]\n{FILE}", takes="AKIAFILE"),
    Case("defaults", config=f"[DEFAULT]\n{FILE}[default]\nregion = r\n", takes="AKIAFILE"),
    Case("comments", credentials=f"# c\n; d\n[default] # e\n  # f\n{FILE}\n#aws_session_token = t\n", takes="AKIAFILE"),
    Case(
        "colons-case-spaces",
        credentials="[default]\nAWS_Access_Key_ID : AKIAFILE\naws_secret_access_key=  file/secret  \n",
        takes="AKIAFILE",
    ),
    Case("crlf", credentials=f"[default]\n{FILE}".replace("\n", "\r\n"), takes="AKIAFILE"),
    Case("nested", credentials=f"[default]\ns3 =\n  addressing_style = path\n\n  use_x = 1\n{FILE}", takes="AKIAFILE"),
    Case("file-token", credentials=f"[default]\n{FILE}aws_session_token = t=t\n", takes="AKIAFILE"),
    Case(
        "moved",
        environment={"AWS_SHARED_CREDENTIALS_FILE": "~/other", "AWS_CONFIG_FILE": "{home}/none"},
        takes="AKIAOTHER",
    ),
    Case("role", config=f"[default]\n{role('r', 'source_profile = b')}[profile b]\n{FILE}", takes="ASIAr"),
    Case(
        "role-more",
        config=f"[default]\n{role('r', 'source_profile = b')}external_id = e+x\n"
        f"role_session_name = me\nduration_seconds = 900\n[profile b]\n{FILE}",
        takes="ASIAr",
    ),
    Case("role-of-itself", config=f"[default]\n{role('r', 'source_profile = default')}{FILE}", takes="ASIAr"),
    Case("role-in-credentials", credentials=f"[default]\n{role('r', 'source_profile = b')}[b]\n{FILE}", takes="ASIAr"),
    Case(
        "role-over-keys",
        credentials=f"[default]\n{OTHER}[b]\n{FILE}",
        config=f"[default]\n{role('r', 'source_profile = b')}",
        takes="ASIAr",
    ),
    Case(
        "roles",
        config=f"[default]\n{role('r', 'source_profile = b')}"
        f"[profile b]\n{role('q', 'source_profile = c')}[profile c]\n{FILE}",
        takes="ASIAr",
    ),
    Case(
        "role-static-wins",
        config=f"[default]\n{role('r', 'source_profile = b')}"
        f"[profile b]\n{role('q', 'source_profile = c')}{FILE}[profile c]\n{OTHER}",
        takes="ASIAr",
    ),
    Case(
        "role-of-environment",
        environment={**ENV, "AWS_SESSION_TOKEN": "t"},
        profile="a",
        config=f"[profile a]\n{role('r', 'credential_source = Environment')}",
        takes="ASIAr",
    ),
    Case(
        "role-of-container",
        environment=CONTAINER,
        config=f"[default]\n{role('r', 'credential_source = EcsContainer')}",
        takes="ASIAr",
    ),
    Case(
        "role-of-instance",
        environment=IMDS,
        config=f"[default]\n{role('r', 'credential_source = Ec2InstanceMetadata')}",
        takes="ASIAr",
    ),
    Case(
        "role-of-process",
        config=process(PROCESS) + f"[profile a]\n{role('r', 'source_profile = default')}",
        profile="a",
        takes="ASIAr",
    ),
    Case(
        "role-of-web",
        config=f"[default]\n{role('r', 'source_profile = b')}"
        f"[profile b]\n{role('w', 'web_identity_token_file = {home}/web')}",
        takes="ASIAr",
    ),
    Case("role-of-sso", config=SSO + f"[profile a]\n{role('r', 'source_profile = sso')}", profile="a", takes="ASIAr"),
    Case("web", environment=WEB, takes="ASIAweb"),
    Case("web-name", environment={**WEB, "AWS_ROLE_SESSION_NAME": "me"}, takes="ASIAweb"),
    Case("web-over-file", environment=WEB, credentials=f"[default]\n{FILE}", takes="ASIAweb"),
    Case(
        "role-over-web",
        environment=WEB,
        config=f"[default]\n{role('r', 'source_profile = b')}[profile b]\n{FILE}",
        takes="ASIAr",
    ),
    Case("web-profile", config=f"[default]\n{role('w', 'web_identity_token_file = {home}/web')}", takes="ASIAw"),
    Case("web-named-profile", environment=WEB, profile="a", config=f"[profile a]\n{FILE}", takes="AKIAFILE"),
    Case("sso", config=SSO, profile="sso", takes="ASIARead0042"),
    Case("sso-legacy", config=LEGACY, takes="ASIARead0042"),
    Case("sso-over-file", config=LEGACY, credentials=f"[default]\n{FILE}", takes="ASIARead0042"),
    Case("process", config=process(PROCESS), takes="AKIAPROC"),
    Case(
        "process-expires",
        config=process(PROCESS[:-1] + ', "Expiration": "2099-01-02T03:04:05+00:00"}'),
        takes="AKIAPROC",
    ),
    Case("file-over-process", config=process(PROCESS), credentials=f"[default]\n{FILE}", takes="AKIAFILE"),
    Case("process-over-config", config=process(PROCESS) + OTHER, takes="AKIAPROC"),
    Case("container", environment=CONTAINER, takes="ASIACONT"),
    Case(
        "container-token", environment={**CONTAINER, "AWS_CONTAINER_AUTHORIZATION_TOKEN": "Basic x"}, takes="ASIACONT"
    ),
    Case(
        "container-token-file",
        environment={
            **CONTAINER,
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": "x",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "{home}/web",
        },
        takes="ASIACONT",
    ),
    Case("container-over-instance", environment={**CONTAINER, **IMDS}, takes="ASIACONT"),
    Case("instance", environment=IMDS, takes="ASIAIMDS"),
    Case(
        "instance-of-profile",
        environment={"AWS_EC2_METADATA_DISABLED": ""},
        config="[default]\nec2_metadata_service_endpoint = {url}/\n",
        takes="ASIAIMDS",
    ),
]

# What both refuse, and botocore where boto_takes is not set.
BROKEN = [
    Case("nothing", says="no credentials: none in the environment, in {home}/.aws/config"),
    Case(
        "no-profile",
        environment={"AWS_PROFILE": "x"},
        credentials=f"[a]\n{FILE}",
        says='there is no profile "x" in'
        " {home}/.aws/config ([profile x]) or "
        "{home}/.aws/credentials ([x]): correct AWS_PROFILE",
    ),
    Case(
        "half-environment",
        environment={"AWS_ACCESS_KEY_ID": "AKIAENV"},
        says="AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not",
    ),
    Case(
        "bad-expiration",
        environment={**ENV, "AWS_CREDENTIAL_EXPIRATION": "soon"},
        says="AWS_CREDENTIAL_EXPIRATION=soon is not a time",
    ),
    Case(
        "expired",
        environment={**ENV, "AWS_CREDENTIAL_EXPIRATION": "2020-01-02T03:04:05Z"},
        says="the keys of the environment (AWS_ACCESS_KEY_ID) ended at 2020-01-02 03:04:05 UTC",
    ),
    Case(
        "half-file",
        credentials="[default]\naws_access_key_id = AKIAFILE\n",
        says='profile "default" ({home}/.aws/credentials, line 2) has aws_access_key_id and no aws_secret_access_key',
    ),
    Case(
        "key-with-comment",
        credentials=f"[default]\n{FILE}".replace("secret\n", "secret # mine\n"),
        says='a key of profile "default" ({home}/.aws/credentials, line 2) is empty, or has a space',
        boto_takes=True,
    ),
    Case("no-section", credentials=FILE, says="{home}/.aws/credentials: line 1: it stands before the first [section]"),
    Case(
        "no-sign",
        credentials="[default]\n\nnonsense\n",
        says="{home}/.aws/credentials: line 3: it is neither [section] nor key = value",
    ),
    Case(
        "twice",
        credentials=f"[default]\n{FILE}{FILE}",
        says='line 4: "aws_access_key_id" is there twice in its section (line 2)',
    ),
    Case(
        "section-twice",
        credentials=f"[default]\n{FILE}[default]\n",
        says="line 4: the section [default] is there twice",
    ),
    Case(
        "nested-no-sign",
        config="[default]\ns3 =\n  path\n",
        says='{home}/.aws/config: line 2: a line of the value of "s3" has no "="',
    ),
    Case("nul", credentials="[default]\na = \0\n", says="line 2: it has a NUL byte", boto_takes=True),
    Case(
        "role-both",
        config=f"[default]\n{role('r', 'source_profile = b')}credential_source = Environment\n[profile b]\n{FILE}",
        says="has role_arn and both source_profile and credential_source",
    ),
    Case(
        "role-neither",
        config=f"[default]\n{role('r', '')}",
        says='"default" ({home}/.aws/config, line 2) has role_arn and neither source_profile nor credential_source',
    ),
    Case(
        "role-of-nobody",
        config=f"[default]\n{role('r', 'source_profile = x')}",
        says='source_profile of profile "default" ({home}/.aws/config, line 3): there is no profile "x"',
    ),
    Case(
        "role-of-empty",
        config=f"[default]\n{role('r', 'source_profile = b')}[profile b]\nregion = r\n",
        says='the profile "b" has no keys',
    ),
    Case(
        "role-circle",
        config=f"[default]\n{role('r', 'source_profile = b')}[profile b]\n{role('q', 'source_profile = default')}",
        says='the roles of "default" and others need each other',
    ),
    Case(
        "role-source",
        config=f"[default]\n{role('r', 'credential_source = Cloud')}",
        says='"Cloud" is not one of Environment, Ec2InstanceMetadata, EcsContainer',
    ),
    Case(
        "role-no-environment",
        config=f"[default]\n{role('r', 'credential_source = Environment')}",
        says='credential_source of profile "default" ({home}/.aws/config, line 3): AWS_ACCESS_KEY_ID is not set',
    ),
    Case(
        "role-no-container",
        config=f"[default]\n{role('r', 'credential_source = EcsContainer')}",
        says="no keys of a container: neither AWS_CONTAINER_CREDENTIALS_RELATIVE_URI nor _FULL_URI is set",
    ),
    Case(
        "role-mfa",
        config=f"[default]\n{role('r', 'source_profile = b')}mfa_serial = m\n[profile b]\n{FILE}",
        says="asks for a code of an MFA device (mfa_serial)",
        boto_takes=True,
    ),
    Case(
        "role-duration",
        config=f"[default]\n{role('r', 'source_profile = b')}duration_seconds = 1h\n[profile b]\n{FILE}",
        says='line 4): duration_seconds = "1h" is not a number',
        boto_takes=True,
    ),
    Case(
        "web-no-role",
        environment={"AWS_WEB_IDENTITY_TOKEN_FILE": "{home}/web"},
        says="AWS_WEB_IDENTITY_TOKEN_FILE names a web identity token and there is no role for it: set AWS_ROLE_ARN",
    ),
    Case(
        "web-no-file",
        environment={**WEB, "AWS_WEB_IDENTITY_TOKEN_FILE": "{home}/none"},
        says="the web identity token's file {home}/none cannot be read: No such file",
    ),
    Case(
        "web-empty",
        environment={**WEB, "AWS_WEB_IDENTITY_TOKEN_FILE": "{home}/empty"},
        says="{home}/empty holds no web identity token",
        boto_takes=True,
    ),
    Case(
        "sso-no-session",
        config=SSO.replace("[sso-session", "[sso-sess"),
        profile="sso",
        says="there is no [sso-session corp] in {home}/.aws/config: run aws configure sso",
    ),
    Case(
        "sso-missing",
        config=LEGACY.replace("sso_region", "region"),
        says='profile "default" ({home}/.aws/config, line 1) uses SSO and has no sso_region',
    ),
    Case(
        "sso-differs",
        config=SSO.replace("Read\n", "Read\nsso_region = eu-west-1\n"),
        profile="sso",
        says='its sso_region is "eu-west-1" and that of its sso_session is "us-east-2"',
    ),
    Case(
        "sso-no-login",
        config=LEGACY.replace("https://s", "https://other"),
        says="there is no login of SSO in {home}/.aws/sso/cache/",
    ),
    Case(
        "login-session",
        config="[default]\nlogin_session = arn\n",
        says="is of aws login, whose keys the aws command alone can renew",
    ),
    Case(
        "process-version",
        config=process('{"Version": 2}'),
        says='of profile "default" ({home}/.aws/config, line 2): credential_process answers in version 2',
    ),
    Case(
        "process-no-keys",
        config=process('{"Version": 1, "AccessKeyId": "a"}'),
        says="the answer of credential_process has no AccessKeyId and SecretAccessKey",
    ),
    Case("process-no-json", config=process("hello"), says="what credential_process printed is not JSON"),
    Case(
        "process-fails",
        config="[default]\ncredential_process = sh -c 'exit 3'\n",
        says="credential_process ended with exit status 3: run it by hand",
    ),
    Case(
        "process-missing",
        config="[default]\ncredential_process = /no/such/program\n",
        says="credential_process /no/such/program cannot be run: No such file",
    ),
    Case(
        "process-long",
        config="[default]\ncredential_process = sh -c 'head -c 40000 /dev/zero'\n",
        says="credential_process printed 32768 bytes or more",
    ),
    Case(
        "process-quote",
        config="[default]\ncredential_process = sh -c 'exit\n",
        says="credential_process: its command has a quote that is left open",
    ),
    Case(
        "process-expired",
        config=process(PROCESS[:-1] + ', "Expiration": "2020-01-02T03:04:05Z"}'),
        says="ended at 2020-01-02 03:04:05 UTC: renew them (is the machine's clock right?)",
    ),
    Case(
        "process-bad-time",
        config=process(PROCESS[:-1] + ', "Expiration": "tomorrow"}'),
        says="the answer of credential_process has an Expiration that is not a time",
    ),
    Case(
        "container-host",
        environment={"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://example.com/x"},
        says="AWS_CONTAINER_CREDENTIALS_FULL_URI=http://example.com/x: keys are fetched over https://",
    ),
    Case(
        "container-path",
        environment={"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "x"},
        says="AWS_CONTAINER_CREDENTIALS_RELATIVE_URI=x is not a path",
        boto_takes=True,
    ),
    Case(
        "container-token",
        environment={**CONTAINER, "AWS_CONTAINER_AUTHORIZATION_TOKEN": "a\nb"},
        says="AWS_CONTAINER_AUTHORIZATION_TOKEN holds a line end or nothing",
    ),
    Case(
        "container-token-file",
        environment={**CONTAINER, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "{home}/none"},
        says="AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE {home}/none cannot be read",
    ),
    Case(
        "imds-url",
        environment={**IMDS, "AWS_EC2_METADATA_SERVICE_ENDPOINT": "nowhere"},
        says="AWS_EC2_METADATA_SERVICE_ENDPOINT=nowhere is not of the form http://host[:port]",
    ),
    Case(
        "services",
        environment={"AWS_PROFILE": "a"},
        config=f"[profile a]\nservices = x\n{role('w', 'web_identity_token_file = {home}/web')}",
        says='profile "a" ({home}/.aws/config, line 2): there is no [services x] in',
    ),
]
