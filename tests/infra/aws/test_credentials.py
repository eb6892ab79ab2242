"""Every way to log in to AWS, from the files of a home to what the commands say."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from cloudtune.infra.emulator.requests import Access
from cloudtune.profiles import store
from cloudtune.profiles.store import script_hash
from tests.aws_stand_in.account import Account, allow, set_up_account
from tests.aws_stand_in.company_proxy import CompanyProxy
from tests.builders.machines import profile
from tests.builders.servers import serving

BUCKET = "cloudtune-123456789012-us-east-1-an"
MFA_CODE = "123456"
END = "2031-01-01T00:00:00Z"
EXPERIMENT = f"""\
name: small
train: train.py:train
metric: {{name: loss, mode: min}}
search: {{lr: {{loguniform: [1e-4, 1]}}}}
trials: 4
epochs: {{min: 1, max: 4}}
cloud: {{provider: aws, region: us-east-1, instances: [g4dn.xlarge]}}
storage: s3://{BUCKET}/cloudtune
"""
# Checks the account, plans with live prices, and writes and reads the bucket, in one process.
COMMANDS = f"""
import os, sys
from cloudtune.cli.main import main
from cloudtune.train.storage import try_storage
for words in [["aws", "check"], ["plan", "experiment.yaml", "--profile", "speeds.json"]]:
    sys.argv = ["cloudtune", *words]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            sys.exit(ended.code)
try_storage("s3://{BUCKET}/login")
print("stored")
"""
PLAN = COMMANDS.replace('["aws", "check"], ', "")
Home = Path


@pytest.fixture(scope="module")
def account(warm_emulators: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    """An account that `cloudtune aws setup` has been used on."""
    with set_up_account(tmp_path_factory.mktemp("logins"), boot_seconds=0.2) as emulator:
        account = Account(emulator)
        account.client("iam").create_service_linked_role(AWSServiceName="spot.amazonaws.com")
        yield account
        account.close()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with a folder for AWS's files, and an experiment beside it."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT)
    script = tmp_path / "train.py"
    script.write_text("def train(config, epochs):\n    yield {'loss': 0.0}\n")
    speeds = replace(profile({1: 20.0}, name="g4dn.xlarge"), script_hash=script_hash(script))
    store.write(tmp_path / "speeds.json", [speeds])
    return tmp_path


def runs(home: Home, access: Access, said: str = "", **variables: str) -> str:
    """Run the commands as someone with that home; return what they print, all of them succeed."""
    done = commands(home, access, said, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("stored\n")
    return done.stdout + done.stderr


def commands(
    home: Home, access: Access, said: str = "", program: str = COMMANDS, **variables: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    own = {"HOME": str(home), "CLOUDTUNE_HOME": str(home / "home")}
    aws = {"AWS_ENDPOINT_URL": access.endpoint, "AWS_EC2_METADATA_DISABLED": "true"}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=home,
        env={**kept, **own, **aws, **variables},
        input=said,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def write(home: Home, name: str, text: str) -> None:
    (home / ".aws" / name).write_text(text)


def make_role(account: Account) -> str:
    """Return the ARN of a role that may do everything, and that everyone may take."""
    iam = account.client("iam")
    if "dev" not in {role["RoleName"] for role in iam.list_roles()["Roles"]}:
        statement = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
        trust = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.create_role(RoleName="dev", AssumeRolePolicyDocument=trust)
        iam.put_role_policy(RoleName="dev", PolicyName="all", PolicyDocument=json.dumps(allow("*")))
    return str(iam.get_role(RoleName="dev")["Role"]["Arn"])


def of_role(account: Account) -> dict[str, str]:
    """Return temporary keys of that role."""
    sts = account.client("sts")
    made = sts.assume_role(RoleArn=make_role(account), RoleSessionName="carl")["Credentials"]
    names = ("AccessKeyId", "SecretAccessKey", "SessionToken")
    return {name: str(made[name]) for name in names}


def static_keys(home: Home, account: Account, profile: str = "default") -> None:
    key, secret = account.keys("carl", allow("*"))
    keys = f"aws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
    write(home, "credentials", f"[{profile}]\n{keys}")


def test_static_keys(home: Home, account: Account) -> None:
    static_keys(home, account)
    assert "carl" in runs(home, account.access)


def test_a_role_asks_for_its_mfa_code_once(home: Home, account: Account) -> None:
    static_keys(home, account, "base")
    role = (
        f"[default]\nrole_arn = {make_role(account)}\nsource_profile = base\nregion = us-east-1\n"
    )
    write(home, "config", f"{role}mfa_serial = arn:aws:iam::123456789012:mfa/carl\n")
    first = runs(home, account.access, f"{MFA_CODE}\n")
    assert first.count("Enter MFA code for arn:aws:iam::123456789012:mfa/carl") == 1
    assert "Enter MFA code" not in runs(home, account.access), "the aws command's cache has it"


def test_a_role_without_mfa(home: Home, account: Account) -> None:
    static_keys(home, account, "base")
    write(home, "config", f"[default]\nrole_arn = {make_role(account)}\nsource_profile = base\n")
    assert "assumed-role/dev" in runs(home, account.access)


def test_a_credential_process(home: Home, account: Account) -> None:
    write(home, "keys", json.dumps({"Version": 1, "Expiration": END, **of_role(account)}))
    process = f"credential_process = cat {home}/.aws/keys"
    write(home, "config", f"[profile work]\n{process}\nregion = us-east-1\n")
    runs(home, account.access, AWS_PROFILE="work")


@contextmanager
def portal(keys: dict[str, str]) -> Iterator[str]:
    """Yield the address of a portal of IAM Identity Center that gives these keys for a token."""

    class Portal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers["x-amz-sso_bearer_token"] == "valid"
            names = {"accessKeyId": "AccessKeyId", "secretAccessKey": "SecretAccessKey"}
            given: dict[str, Any] = {name: keys[key] for name, key in names.items()}
            given |= {"sessionToken": keys["SessionToken"], "expiration": 1924992000000}
            body = json.dumps({"roleCredentials": given} if known else {}).encode()
            self.send_response(200 if known else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with serving(HTTPServer(("127.0.0.1", 0), Portal)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def test_expired_sso_login_gets_advice(home: Home, account: Account) -> None:
    profile = "sso_session = corp\nsso_account_id = 123456789012\nsso_role_name = dev\n"
    session = "sso_region = us-east-1\nsso_start_url = https://corp.awsapps.com/start\n"
    write(home, "config", f"[default]\n{profile}region = us-east-1\n[sso-session corp]\n{session}")
    cache = home / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True)
    login = cache / f"{hashlib.sha1(b'corp', usedforsecurity=False).hexdigest()}.json"
    with portal(of_role(account)) as address:
        login.write_text(json.dumps({"accessToken": "valid", "expiresAt": END}))
        runs(home, account.access, AWS_ENDPOINT_URL_SSO=address)
        login.write_text(json.dumps({"accessToken": "old", "expiresAt": "2026-01-01T00:00:00Z"}))
        over = commands(home, account.access, AWS_ENDPOINT_URL_SSO=address)
    assert over.returncode == 2
    assert "aws sso login" in over.stderr
    assert "Traceback" not in over.stderr


def test_aws_login(home: Home, account: Account) -> None:
    session = "arn:aws:iam::123456789012:user/carl"
    write(home, "config", f"[default]\nlogin_session = {session}\nregion = us-east-1\n")
    cache = home / ".aws" / "login" / "cache"
    cache.mkdir(parents=True)
    keys = of_role(account)
    token = {
        "accessToken": {
            "accessKeyId": keys["AccessKeyId"],
            "secretAccessKey": keys["SecretAccessKey"],
            "sessionToken": keys["SessionToken"],
            "accountId": "123456789012",
            "expiresAt": END,
        },
        "refreshToken": "r",
        "dpopKey": "k",
        "clientId": "c",
    }
    name = hashlib.sha256(session.encode()).hexdigest()
    (cache / f"{name}.json").write_text(json.dumps(token))
    runs(home, account.access, BOTO_DISABLE_CRT="false")
    (cache / f"{name}.json").unlink()
    over = commands(home, account.access, BOTO_DISABLE_CRT="false")
    assert over.returncode == 2
    assert "Please reauthenticate with 'aws login'" in over.stderr


def test_the_role_of_an_instance(home: Home, account: Account) -> None:
    account.role("box", allow("*"))
    metadata = account.access.metadata(account.instance("box"))
    runs(
        home,
        account.access,
        AWS_EC2_METADATA_DISABLED="false",
        AWS_EC2_METADATA_SERVICE_ENDPOINT=metadata,
        AWS_REGION="us-east-1",
    )


def test_aws_by_its_own_names_behind_a_proxy(home: Home, account: Account) -> None:
    """No AWS_ENDPOINT_URL: every call is encrypted, and to amazonaws.com."""
    static_keys(home, account)
    with serving(CompanyProxy(account.access.endpoint, home)) as proxy:
        company = {"HTTPS_PROXY": proxy.address, "AWS_ENDPOINT_URL": ""}
        refused = commands(home, account.access, **company)
        assert refused.returncode == 2
        assert refused.stderr.startswith("error: AWS can't be reached: SSL validation failed for ")
        what_to_do = "of its own, name their file in AWS_CA_BUNDLE"
        assert refused.stderr.endswith(f"{what_to_do}\n")
        unheard = commands(home, account.access, program=PLAN, **company)
        assert f"{what_to_do}; the table of " in unheard.stdout, unheard.stdout
        assert unheard.stderr.rstrip().endswith(what_to_do), "the bucket"
        company["AWS_CA_BUNDLE"] = str(proxy.bundle)
        runs(home, account.access, **company)
        hosts = ("ec2", "sts", "cloudformation", f"{BUCKET}.s3")
        assert proxy.names >= {f"{host}.us-east-1.amazonaws.com" for host in hosts}
        proxy.page = b"<html>Log in to the guest network"
        refused = commands(home, account.access, **company)
        said = "something else answers in AWS's place, such as the login page of a proxy"
        assert (refused.returncode, refused.stderr) == (2, f"error: AWS can't be reached: {said}\n")
