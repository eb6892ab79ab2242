"""`cloudtune aws check --live`: the calls that runs depend on, made on a real account, for a cent.

It takes one small instance for about a minute, and compares each answer with the expected one.
"""

import contextlib
import json
import re
import shlex
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from botocore.exceptions import ClientError

from cloudtune.infra.aws import pricing
from cloudtune.infra.aws.account.inventory import Inventory, disk_request, root_disk
from cloudtune.infra.aws.account.stack import Clients
from cloudtune.infra.aws.ec2 import Ec2
from cloudtune.infra.aws.errors import CALL_ERRORS, error_code
from cloudtune.infra.aws.networks import HEAD, Network
from cloudtune.infra.node.lease import first_lease
from cloudtune.infra.provider import (
    INTENT_TAG,
    LEASE_TAG,
    PRICE_TAG,
    RUN_TAG,
    at_place,
    launch_token,
)

RUN = "aws-check"
# After this many seconds the instance ends itself, whatever happens to its launcher.
LIVES_SECONDS = 600.0
_PATIENCE = {"listed": 60.0, "wrote": 300.0, "console": 90.0, "gone": 180.0}
# Seconds between two looks at live instances.
_PAUSE = 1.0

_SCRIPT = """
import json, os, socket, subprocess, sys, tempfile, urllib.request
HOST = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
ROOT = HOST.rstrip("/") + "/latest/"
def ask(path, **more):
    with urllib.request.urlopen(urllib.request.Request(ROOT + path, **more), timeout=10) as answer:
        return answer.read().decode()
ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
token = {"X-aws-ec2-metadata-token": ask("api/token", method="PUT", headers=ttl)}
facts = {
    "instance": ask("meta-data/instance-id", headers=token),
    "role": ask("meta-data/iam/security-credentials/", headers=token),
    "python": sys.version.split()[0],
    "up": float(open("/proc/uptime").read().split()[0]),
}
print("cloudtune-check", json.dumps(facts), flush=True)
try:
    import boto3
    body = json.dumps(facts).encode()
    boto3.client("s3", region_name=REGION).put_object(Bucket=BUCKET, Key=KEY, Body=body)
except ImportError:
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(json.dumps(facts)); file.flush()
        command = ["aws", "s3", "cp", file.name, "s3://%s/%s" % (BUCKET, KEY), "--region", REGION]
        subprocess.run(command, check=True)
print("cloudtune-check wrote", flush=True)
"""


@dataclass(frozen=True)
class Answer:
    """One call: the expected answer, the actual one, and whether they agree."""

    call: str
    expected: str
    answer: str
    ok: bool
    seconds: float


@dataclass
class LiveCheck:
    """The calls of one check of an account; `calls` ends everything that it launches.

    `stamp` makes its names unique.
    """

    clients: Clients
    ec2: Ec2
    account: Inventory
    stamp: str

    def __post_init__(self) -> None:
        self.run = f"{RUN}-{self.stamp}"
        self._type = self.account.place.head_types[0]
        kms = self.account.place.kms
        image = self.account.image or ""
        network = Network(self.account.place.region, self.account.subnets, are_named=True)
        self._places = network.places(HEAD) if self.account.settings.subnets else {}
        self._disk = disk_request(root_disk(self.clients, image), kms) if kms else {}
        self._key = f"{RUN}/{self.stamp}.json"
        self._instance = ""
        self._has_launched = False
        self._began = time.time()

    def plan(self) -> list[str]:
        """Return what will be done and its cost, in words."""
        place = self.account.place
        dollars = pricing.HEAD_USD_PER_HOUR.get(self._type)
        price = "its price" if dollars is None else f"${dollars:.4g} an hour: ${dollars / 60:.3f}"
        launched = f"launch one {self._type} in {place.region}, tagged {self.run}"
        return [
            f"{launched} (about a minute of {price}, and a disk for as long)",
            f"have it write {self._key} into {place.bucket}, read that, and delete it",
            f"end it; by itself it ends in {LIVES_SECONDS / 60:.0f} minutes",
        ]

    def calls(self) -> Generator[Answer]:
        """Make the calls, and yield the answer of each; always end what was launched.

        After a crash `cloudtune status` and `gc` find the instance by its tag, like any other.
        """
        try:
            for call, expected, pattern, make in self._steps():
                began = time.monotonic()
                try:
                    answer = make() or "nothing, in the time that it had"
                except CALL_ERRORS as error:
                    answer = str(error)
                is_expected = re.fullmatch(pattern, answer, re.DOTALL) is not None
                yield Answer(call, expected, answer, is_expected, time.monotonic() - began)
        finally:
            self._end_all()
            with contextlib.suppress(*CALL_ERRORS):
                self._gone()  # while it shuts down it can still write
            with contextlib.suppress(*CALL_ERRORS):
                self.clients["s3"].delete_object(Bucket=self.account.place.bucket, Key=self._key)

    def _steps(self) -> Iterator[tuple[str, str, str, Callable[[], str]]]:
        """Yield calls: a name, the expectation in words and as a pattern, and the call itself."""
        mismatch = "IdempotentParameterMismatch"
        same = "the same id"
        yield "RunInstances, DryRun", "DryRunOperation", "DryRunOperation", self._dry_run
        yield "RunInstances", "an instance's id", "i-.*", self._launch
        yield "RunInstances, the same token", same, same, self._launch_again
        yield "RunInstances, the token, another script", mismatch, mismatch, self._launch_other
        yield "DescribeInstances by tag", "it, with its tags", ".*, check, .*", self._listed
        its_words = "its metadata and role, by what it wrote"
        yield its_words, "its id and role", ".*cloudtune-head-.*", self._wrote
        yield "GetConsoleOutput", "what it printed", ".*cloudtune-check.*", self._console
        yield "TerminateInstances", "shutting-down or gone", "no error", self._end
        yield "DescribeInstances until the end", "terminated", "terminated", self._gone
        yield "TerminateInstances once more", "no error", "no error", self._end

    def _end_all(self) -> None:
        """End what was launched; a new instance isn't visible to every call at first."""
        give_up = time.monotonic() + _PATIENCE["listed"]
        while self._has_launched and time.monotonic() < give_up:
            with contextlib.suppress(*CALL_ERRORS):
                alive = {instance.id for instance in self.ec2.ours(self.run, ended=False)}
                doomed = alive | ({self._instance} - {""})
                self.ec2.terminate([*doomed])
                if doomed:
                    return
            time.sleep(_PAUSE)

    def _tags(self) -> dict[str, str]:
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began + LIVES_SECONDS))
        dollars = pricing.HEAD_USD_PER_HOUR.get(self._type)
        return {
            **self.account.place.tags,
            RUN_TAG: self.run,
            INTENT_TAG: "check",
            LEASE_TAG: end,
            **({} if dollars is None else {PRICE_TAG: f"{dollars:g}"}),
        }

    def _request(self, more: str = "") -> dict[str, Any]:
        place = self.account.place
        names = f"REGION, BUCKET, KEY = {(place.region, place.bucket, self._key)!r}\n"
        script = (
            "#!/bin/bash\n"
            f"{first_lease(self._began, self._began + LIVES_SECONDS)}"
            f"python3 -c {shlex.quote(names + _SCRIPT)}\n"
            f"sleep infinity\n{more}"
        )
        request = {
            "ImageId": self.account.image,
            "InstanceType": self._type,
            "SecurityGroupIds": [self.account.group] if self.account.group else [],
            "IamInstanceProfile": {"Name": place.head},
            "UserData": script,
            **self._disk,
        }
        return at_place(request, self._places, "")

    def _dry_run(self) -> str:
        error = self.ec2.try_launch(self._tags(), self._request())
        return "it was launched" if error is None else error_code(error)

    def _launch(self) -> str:
        self._has_launched = True  # before the call: its answer may be lost
        self._instance = self._run()
        return self._instance

    def _run(self, more: str = "") -> str:
        token = launch_token(self.run, "check", self._type, "", "")
        return self.ec2.run_instance(token, self._tags(), self._request(more))

    def _launch_again(self) -> str:
        instance = self._run()
        return "the same id" if instance == self._instance else f"another one: {instance}"

    def _launch_other(self) -> str:
        try:
            return f"launched: {self._run('# another')}"
        except ClientError as error:
            return error_code(error)

    def _listed(self) -> str:
        def look() -> str:
            instances = self.ec2.ours(self.run)
            return ", ".join(f"{one.id}, {one.intent}, {one.state}" for one in instances)

        return _awaited(look, _PATIENCE["listed"])

    def _wrote(self) -> str:
        def look() -> str:
            try:
                answer = self.clients["s3"].get_object(
                    Bucket=self.account.place.bucket, Key=self._key
                )
            except ClientError:
                return ""
            with contextlib.closing(answer["Body"]) as written:
                facts = json.loads(written.read())
            up = f"up {facts['up']:.0f} s"
            return f"{facts['instance']}, {facts['role']}, Python {facts['python']}, {up}"

        return _awaited(look, _PATIENCE["wrote"])

    def _console(self) -> str:
        def look() -> str:
            lines = self.ec2.console(self._instance).splitlines()
            return next((line for line in lines if "cloudtune-check" in line), "")

        return _awaited(look, _PATIENCE["console"])

    def _end(self) -> str:
        self.ec2.terminate([self._instance])
        return "no error"

    def _gone(self) -> str:
        def look() -> str:
            states = {instance.state for instance in self.ec2.ours(self.run)}
            return "terminated" if states <= {"terminated"} else ""

        return _awaited(look, _PATIENCE["gone"])


def report(live: LiveCheck, answers: list[Answer]) -> dict[str, Any]:
    """Return everything as JSON: which region, when, and each answer; no secrets."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "region": live.account.place.region,
        "image": live.account.image,
        "instance_type": live.account.place.head_types[0],
        "ok": all(answer.ok for answer in answers),
        "calls": [asdict(answer) for answer in answers],
    }


def _awaited(look: Callable[[], str], patience: float) -> str:
    give_up = time.monotonic() + patience
    while not (answer := look()) and time.monotonic() < give_up:
        time.sleep(_PAUSE)
    return answer
