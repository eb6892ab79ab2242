"""`cloudtune aws check --live`: the calls that all rests on, made on a real account, for a cent.

One small instance for about a minute. What each call is to answer is written down beforehand;
what it answered, beside it. Who runs this first turns "never run" into a report.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from cloudtune.infra.aws import pricing
from cloudtune.infra.aws.errors import error_code
from cloudtune.infra.node.lease import first_lease
from cloudtune.infra.provider import INTENT_TAG, LEASE_TAG, PRICE_TAG, RUN_TAG, launch_token

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from cloudtune.infra.aws.account.found import Clients, Found
    from cloudtune.infra.aws.ec2 import Ec2

RUN = "aws-check"
LIVES_SECONDS = 600.0
"""The instance ends itself after so long, whatever becomes of who launched it."""
_PATIENCE = {"listed": 60.0, "wrote": 300.0, "console": 90.0, "gone": 180.0}
_PAUSE = 1.0

_WORDS = """
import json, os, socket, subprocess, sys, tempfile, urllib.request
HOST = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
ROOT = HOST.rstrip("/") + "/latest/"
def ask(path, **more):
    with urllib.request.urlopen(urllib.request.Request(ROOT + path, **more), timeout=10) as answer:
        return answer.read().decode()
ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
token = {"X-aws-ec2-metadata-token": ask("api/token", method="PUT", headers=ttl)}
told = {
    "instance": ask("meta-data/instance-id", headers=token),
    "role": ask("meta-data/iam/security-credentials/", headers=token),
    "python": sys.version.split()[0],
    "up": float(open("/proc/uptime").read().split()[0]),
}
print("cloudtune-check", json.dumps(told), flush=True)
try:
    import boto3
    body = json.dumps(told).encode()
    boto3.client("s3", region_name=REGION).put_object(Bucket=BUCKET, Key=KEY, Body=body)
except ImportError:
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(json.dumps(told)); file.flush()
        command = ["aws", "s3", "cp", file.name, "s3://%s/%s" % (BUCKET, KEY), "--region", REGION]
        subprocess.run(command, check=True)
print("cloudtune-check wrote", flush=True)
"""


@dataclass(frozen=True)
class Came:
    """One call: what it was to answer, what it answered, and whether that is the same."""

    call: str
    expected: str
    came: str
    ok: bool
    seconds: float


@dataclass
class Live:
    """The calls of one look at an account; what it launches ends with `calls`.

    `stamp` makes its names unlike those of another look.
    """

    clients: Clients
    ec2: Ec2
    found: Found
    stamp: str

    def __post_init__(self) -> None:
        self.run = f"{RUN}-{self.stamp}"
        self._key = f"{RUN}/{self.stamp}.json"
        self._instance, self._asked = "", False
        self._begun = time.time()

    def plan(self) -> list[str]:
        """Return what will be done, and what it costs, in words."""
        dollars, kind = pricing.HEAD_USD_PER_HOUR, pricing.HEAD_TYPE
        price = f"${dollars:.4g} an hour: ${dollars / 60:.3f}"
        first = f"launch one {kind} in {self.found.place.region}, tagged {self.run}"
        return [
            f"{first} (about a minute of {price}, and a disk for as long)",
            f"have it write {self._key} into {self.found.place.bucket}, read that, and delete it",
            f"end it; by itself it ends in {LIVES_SECONDS / 60:.0f} minutes",
        ]

    def calls(self) -> Generator[Came]:
        """Make the calls, and yield each as it is answered; what was launched is ended in any case.

        After a crash it is found by its tag, by `cloudtune status` and `gc`, as any instance.
        """
        try:
            for call, expected, make in self._steps():
                yield _made(call, expected, make)
        finally:
            self._end_all()
            with contextlib.suppress(BotoCoreError, ClientError):
                self._gone()  # while it shuts down it can still write
            with contextlib.suppress(BotoCoreError, ClientError):
                self.clients["s3"].delete_object(Bucket=self.found.place.bucket, Key=self._key)

    def _steps(self) -> Iterator[tuple[str, str, Callable[[], str]]]:
        yield "RunInstances, DryRun", "DryRunOperation", self._dry_run
        yield "RunInstances", "an instance's id", self._launch
        yield "RunInstances, the same token", "the same id", self._again
        yield "RunInstances, the token, another script", "IdempotentParameterMismatch", self._other
        yield "DescribeInstances by tag", "it, with its tags", self._listed
        yield "its metadata and role, by what it wrote", "its id and role", self._wrote
        yield "GetConsoleOutput", "what it printed", self._console
        yield "TerminateInstances", "shutting-down or gone", self._end
        yield "DescribeInstances until the end", "terminated", self._gone
        yield "TerminateInstances once more", "no error", self._end

    def _end_all(self) -> None:
        """End what was launched; a new instance isn't known to every call at once."""
        give_up = time.monotonic() + _PATIENCE["listed"]
        while self._asked and time.monotonic() < give_up:
            with contextlib.suppress(BotoCoreError, ClientError):
                alive = {each.id for each in self.ec2.ours(self.run, ended=False)}
                doomed = alive | ({self._instance} - {""})
                self.ec2.terminate([*doomed])
                if doomed:
                    return
            time.sleep(_PAUSE)

    # ---- each call ---------------------------------------------------------------------------

    def _tags(self) -> dict[str, str]:
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._begun + LIVES_SECONDS))
        price = f"{pricing.HEAD_USD_PER_HOUR:g}"
        return {RUN_TAG: self.run, INTENT_TAG: "check", LEASE_TAG: end, PRICE_TAG: price}

    def _request(self, more: str = "") -> dict[str, Any]:
        place = self.found.place
        known = f"REGION, BUCKET, KEY = {(place.region, place.bucket, self._key)!r}\n"
        script = (
            "#!/bin/bash\n"
            f"{first_lease(self._begun, self._begun + LIVES_SECONDS)}"
            f"python3 -c {shlex.quote(known + _WORDS)}\n"
            f"sleep infinity\n{more}"
        )
        groups = [] if self.found.group is None else [self.found.group]
        return {
            "ImageId": self.found.image,
            "InstanceType": pricing.HEAD_TYPE,
            "SecurityGroupIds": groups,
            "IamInstanceProfile": {"Name": place.head},
            "UserData": script,
        }

    def _dry_run(self) -> str:
        error = self.ec2.try_launch(self._tags(), self._request())
        return "it was launched" if error is None else error_code(error)

    def _launch(self) -> str:
        self._asked = True  # before the call: its answer may be lost
        self._instance = self._run()
        return self._instance

    def _run(self, more: str = "") -> str:
        token = launch_token(self.run, "check", pricing.HEAD_TYPE, "", "")
        return self.ec2.run_instance(token, self._tags(), self._request(more))

    def _again(self) -> str:
        again = self._run()
        return "the same id" if again == self._instance else f"another one: {again}"

    def _other(self) -> str:
        try:
            return f"launched: {self._run('# another')}"
        except ClientError as error:
            return error_code(error)

    def _listed(self) -> str:
        def look() -> str:
            found = self.ec2.ours(self.run)
            return ", ".join(f"{each.id}, {each.intent}, {each.state}" for each in found)

        return _awaited(look, _PATIENCE["listed"])

    def _wrote(self) -> str:
        def look() -> str:
            try:
                asked = {"Bucket": self.found.place.bucket, "Key": self._key}
                body = self.clients["s3"].get_object(**asked)["Body"]
            except ClientError:
                return ""
            with contextlib.closing(body):
                told = json.loads(body.read())
            up = f"up {told['up']:.0f} s"
            return f"{told['instance']}, {told['role']}, Python {told['python']}, {up}"

        return _awaited(look, _PATIENCE["wrote"])

    def _console(self) -> str:
        def look() -> str:
            lines = self.ec2.console(self._instance).splitlines()
            return next((each for each in lines if "cloudtune-check" in each), "")

        return _awaited(look, _PATIENCE["console"])

    def _end(self) -> str:
        self.ec2.terminate([self._instance])
        return "no error"

    def _gone(self) -> str:
        def look() -> str:
            states = {instance.state for instance in self.ec2.ours(self.run)}
            return "terminated" if states <= {"terminated"} else ""

        return _awaited(look, _PATIENCE["gone"])


def report(live: Live, came: list[Came]) -> dict[str, Any]:
    """Return it all as JSON: what was asked of which account, when, and each answer."""
    place = live.found.place
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "region": place.region,
        "image": live.found.image,
        "instance_type": pricing.HEAD_TYPE,
        "ok": all(each.ok for each in came),
        "calls": [asdict(each) for each in came],
    }


_WANTED: dict[str, Callable[[str], bool]] = {
    "DryRunOperation": lambda came: came == "DryRunOperation",
    "an instance's id": lambda came: came.startswith("i-"),
    "the same id": lambda came: came == "the same id",
    "IdempotentParameterMismatch": lambda came: came == "IdempotentParameterMismatch",
    "it, with its tags": lambda came: ", check, " in came,
    "its id and role": lambda came: "cloudtune-head-" in came,
    "what it printed": lambda came: "cloudtune-check" in came,
    "shutting-down or gone": lambda came: came == "no error",
    "terminated": lambda came: came == "terminated",
    "no error": lambda came: came == "no error",
}


def _made(call: str, expected: str, make: Callable[[], str]) -> Came:
    began = time.monotonic()
    try:
        came = make() or "nothing, in the time that it had"
    except (BotoCoreError, ClientError) as error:
        came = str(error)
    return Came(call, expected, came, _WANTED[expected](came), time.monotonic() - began)


def _awaited(look: Callable[[], str], patience: float) -> str:
    give_up = time.monotonic() + patience
    while not (found := look()) and time.monotonic() < give_up:
        time.sleep(_PAUSE)
    return found
