"""The emulated EC2 lets in its user alone: by signature, token and host, each refused alone.

Whoever launches an instance has its user data run as the emulator's owner.
"""

import contextlib
import http.client
import json
import os
import stat
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from mypy_boto3_ec2 import EC2Client

from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.emulator.service import Emulator, ensure_emulator, find_emulator, stop_emulator
from tests.strangers import answers, as_another_user, other_addresses

LAUNCH = urllib.parse.urlencode(
    {
        "Action": "RunInstances",
        "Version": "2016-11-15",
        "ImageId": "ami-1",
        "InstanceType": "g4dn.xlarge",
        "MinCount": "1",
        "MaxCount": "1",
        "UserData": "dG91Y2ggL3RtcC9vd25lZA==",
    }
)
FORM = "application/x-www-form-urlencoded"


def ask(
    access: Access, method: str, path: str, body: str, headers: Mapping[str, str]
) -> tuple[int, str]:
    """Send a request as it stands; return status and text."""
    host = access.endpoint.removeprefix("http://")
    with contextlib.closing(http.client.HTTPConnection(host, timeout=30)) as connection:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def sign(access: Access, body: str = LAUNCH, *, ago: float = 0.0) -> dict[str, str]:
    """Return the headers of a call to EC2, signed n seconds ago with these credentials."""
    request = AWSRequest("POST", access.endpoint + "/", {"Content-Type": FORM}, body)
    then = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() - ago))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.auth, "SIGV4_TIMESTAMP", then)
        SigV4Auth(Credentials(access.key, access.secret), "ec2", "us-east-1").add_auth(request)
    return dict(request.headers)


@pytest.fixture
def nothing_starts(emulator: Emulator) -> Iterator[None]:
    """Fail where an instance was launched, or the emulator ended."""
    before = {instance["id"] for instance in EmulatorControl(emulator.access).instances()}
    yield
    assert {instance["id"] for instance in EmulatorControl(emulator.access).instances()} == before
    assert find_emulator(emulator.home) == emulator


UNHARMED = pytest.mark.usefixtures("nothing_starts")


def refusal(emulator: Emulator, headers: Mapping[str, str], body: str = LAUNCH) -> str:
    """Return the code with which a launch is refused."""
    status, text = ask(emulator.access, "POST", "/", body, headers)
    assert status in (400, 401), text
    return text.split("<Code>")[1].split("</Code>")[0]


@UNHARMED
def test_a_call_that_is_not_signed_is_refused(emulator: Emulator) -> None:
    assert refusal(emulator, {"Content-Type": FORM}) == "AuthFailure"
    claims = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/ec2/aws4_request, "
    forged = {"Content-Type": FORM, "Authorization": f"{claims}SignedHeaders=host, Signature=0"}
    assert refusal(emulator, forged) == "AuthFailure"


@UNHARMED
@pytest.mark.parametrize("service", ["s3", "sts", "iam"])
def test_moto_services_refuse_strangers(emulator: Emulator, service: str) -> None:
    stranger = boto3.client(
        service,  # type: ignore[call-overload]
        region_name="us-east-1",
        endpoint_url=emulator.access.endpoint,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"total_max_attempts": 1}, proxies={}),
    )
    ask_it = {"s3": "list_buckets", "sts": "get_caller_identity", "iam": "list_roles"}[service]
    with contextlib.closing(stranger), pytest.raises(ClientError) as caught:
        getattr(stranger, ask_it)()
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 401
    assert ask(emulator.access, "POST", "/moto-api/reset", "", {})[0] == 401


@UNHARMED
def test_credentials_of_others_are_refused(emulator: Emulator) -> None:
    mine = emulator.access
    for key, secret in [("emulated", "emulated"), (mine.key, "emulated"), (mine.key, "")]:
        other = type(mine)(mine.endpoint, key, secret, "")
        assert refusal(emulator, sign(other)) == "AuthFailure"


@UNHARMED
def test_signature_expires_after_fifteen_minutes(emulator: Emulator) -> None:
    headers = sign(emulator.access)
    assert refusal(emulator, headers, LAUNCH + "&DryRun=true") == "AuthFailure"
    lying = {**headers, "X-Amz-Content-SHA256": "0" * 64}
    assert refusal(emulator, lying, LAUNCH + "&DryRun=true") == "AuthFailure"
    later = {**headers, "X-Amz-Date": "20260101T000000Z"}
    assert refusal(emulator, later) == "AuthFailure"
    assert refusal(emulator, sign(emulator.access, ago=1000)) == "RequestExpired"
    assert refusal(emulator, sign(emulator.access, ago=-1000)) == "RequestExpired"


@UNHARMED
def test_an_upload_is_the_one_that_was_signed(emulator: Emulator) -> None:
    access = emulator.access
    upload = AWSRequest("PUT", f"{access.endpoint}/bucket/key", data="mine")
    S3SigV4Auth(Credentials(access.key, access.secret), "s3", "us-east-1").add_auth(upload)
    headers = dict(upload.headers)
    assert ask(access, "PUT", "/bucket/key", "mine", headers)[0] == 404, "no such bucket"
    assert ask(access, "PUT", "/bucket/key", "another's", headers)[0] == 401


def test_who_has_the_credentials_is_let_in(emulator: Emulator, ec2: EC2Client) -> None:
    assert ec2.describe_availability_zones()["AvailabilityZones"]
    body = "Action=DescribeAvailabilityZones&Version=2016-11-15"
    status, text = ask(emulator.access, "POST", "/", body, sign(emulator.access, body))
    assert status == 200, text


def test_other_services_take_what_is_signed(emulator: Emulator) -> None:
    s3 = boto3.client(
        "s3",
        region_name="us-east-1",
        endpoint_url=emulator.access.endpoint,
        aws_access_key_id=emulator.access.key,
        aws_secret_access_key=emulator.access.secret,
        config=Config(retries={"total_max_attempts": 1}, proxies={}),
    )
    with contextlib.closing(s3):
        s3.create_bucket(Bucket="kept")
        s3.put_object(Bucket="kept", Key="a folder/a+b", Body=b"x" * 100_000)
        result = s3.get_object(Bucket="kept", Key="a folder/a+b")["Body"].read()
    assert result == b"x" * 100_000


@UNHARMED
@pytest.mark.parametrize("host", ["evil.example", "localhost", ""])
def test_a_request_for_another_host_is_refused(emulator: Emulator, host: str) -> None:
    """A page whose name was made to point here (DNS rebinding) names its own host."""
    access = emulator.access
    port = access.endpoint.rpartition(":")[2]
    named = {"Host": f"{host}:{port}" if host else ""}
    assert ask(access, "POST", "/", LAUNCH, {**sign(access), **named})[0] == 403
    for command in ("instances", "shut_down", "replace"):
        headers = {**access.headers, **named}
        assert ask(access, "POST", f"/_cloudtune/{command}", "{}", headers)[0] == 403


@UNHARMED
def test_pages_cant_steer_the_emulator(emulator: Emulator) -> None:
    """What a page may send unasked has no header of its own, and is no JSON."""
    access = emulator.access
    faults = '{"faults": [{"kind": "capacity", "type": "*", "instances": 0}]}'
    plain = {"Content-Type": "text/plain", "Origin": "http://evil.example"}
    for command in ("replace", "shut_down", "move_clock"):
        assert ask(access, "POST", f"/_cloudtune/{command}", faults, plain)[0] == 403
        with_token = {**access.headers, **plain}
        assert ask(access, "POST", f"/_cloudtune/{command}", faults, with_token)[0] == 415
    assert EmulatorControl(access).faults() == []


@UNHARMED
def test_its_control_side_wants_the_token(emulator: Emulator) -> None:
    access = emulator.access
    for given in ({}, {"X-Cloudtune-Token": ""}, {"X-Cloudtune-Token": "x" * 40}):
        headers = {"Content-Type": "application/json", **given}
        for command in ("ping", "instances", "shut_down"):
            assert ask(access, "POST", f"/_cloudtune/{command}", "{}", headers)[0] == 403


def test_machine_key_fits_one_machine(emulator: Emulator, ec2: EC2Client) -> None:
    request: Any = {"ImageId": "ami-1", "InstanceType": "g4dn.xlarge", "MinCount": 1, "MaxCount": 2}
    first, other = [
        run_instance["InstanceId"] for run_instance in ec2.run_instances(**request)["Instances"]
    ]
    access = emulator.access
    try:
        key = {**access.headers, "X-Cloudtune-Token": access.machine_key(first)}
        kill = json.dumps({"instance": first})
        assert ask(access, "POST", "/_cloudtune/kill", kill, key)[0] == 403
        assert ask(access, "POST", "/_cloudtune/instances", "{}", key)[0] == 403
        item = "latest/meta-data/instance-id"
        own = access.metadata(first).removeprefix(access.endpoint)
        theirs = own.replace(first, other)
        assert ask(access, "POST", f"{own}/shutdown", '["-c"]', {})[0] == 200
        assert ask(access, "POST", f"{theirs}/shutdown", '["-c"]', {})[0] == 404
        assert ask(access, "GET", f"{own}/{item}", "", {}) == (200, first)
        assert ask(access, "GET", f"/_imds/{first}/{item}", "", {})[0] == 404
        assert ask(access, "GET", f"{theirs}/{item}", "", {})[0] == 404
    finally:
        ec2.terminate_instances(InstanceIds=[first, other])


def test_another_user_of_this_machine_is_refused() -> None:
    """As `nobody`, in a folder that everybody may enter, and with an umask that hides nothing."""
    with tempfile.TemporaryDirectory(prefix="ct-") as outside:
        Path(outside).chmod(0o755)
        home = Path(outside, "emulator")
        before = os.umask(0)
        try:
            emulator = ensure_emulator(home)
        finally:
            os.umask(before)
        try:
            looks = as_another_user(lambda: attempts(emulator))
            modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [home, *home.rglob("*")]}
        finally:
            assert stop_emulator(home, only_if_idle=True), "nothing was launched"
    assert looks == {"reads": False, "launches": 401, "shuts down": 403, "looks": 403}
    assert [str(path) for path, mode in modes.items() if mode & 0o077] == []


def attempts(emulator: Emulator) -> dict[str, object]:
    """Return what became of what a stranger may try, who found the port."""
    access = emulator.access
    none = {"Content-Type": "application/json"}
    return {
        "reads": os.access(emulator.home / "emulator.json", os.R_OK),
        "launches": ask(access, "POST", "/", LAUNCH, {"Content-Type": FORM})[0],
        "shuts down": ask(access, "POST", "/_cloudtune/shut_down", "{}", none)[0],
        "looks": ask(access, "POST", "/_cloudtune/instances", "{}", {})[0],
    }


def test_it_listens_on_the_loopback_only(emulator: Emulator) -> None:
    port = int(emulator.access.endpoint.rpartition(":")[2])
    assert answers("127.0.0.1", port)
    assert [
        other_addresse for other_addresse in other_addresses() if answers(other_addresse, port)
    ] == []
