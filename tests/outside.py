"""An account on an isolated cloud, and computers outside it that have its keys and nothing else."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.profiles.store import script_hash, write
from tests.bench import TRAIN, Done
from tests.builders.experiments import write_experiment

if TYPE_CHECKING:
    from tests.aws_stand_in.world import World

EXPERIMENT = """
name: small
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {uniform: [0.01, 0.1]}, n: {randint: [0, 1000]}}
trials: 4
epochs: {min: 2, max: 8}
eta: 2
limits: {deadline: 20m, budget: $5}
cloud:
  provider: aws
  instances: [g4dn.xlarge]
  max_instances: 1
"""

USER = """
import boto3, json
iam = boto3.client("iam", region_name="us-east-1")
iam.create_user(UserName="{who}")
iam.put_user_policy(UserName="{who}", PolicyName="tunes", PolicyDocument='''{document}''')
made = iam.create_access_key(UserName="{who}")["AccessKey"]
print(json.dumps([made["AccessKeyId"], made["SecretAccessKey"]]))
"""

INSTANCES = """
import boto3, json, sys
ec2 = boto3.client("ec2", region_name="us-east-1")
instances = [i for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]]
shown = [
    {
        "id": i["InstanceId"],
        "state": i["State"]["Name"],
        "address": i.get("PrivateIpAddress"),
        **{t["Key"].removeprefix("cloudtune:"): t["Value"] for t in i.get("Tags", [])},
    }
    for i in instances
]
print(json.dumps(shown))
"""


@dataclass
class Outside:
    """What people do on their computers, and what the cloud has on record."""

    world: World
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, who: str, *words: str) -> subprocess.Popen[str]:
        """Start a command in the folder `work` of somebody's computer."""
        process = subprocess.Popen(
            self.world.on(who, "sh", "-c", 'mkdir -p work; cd work; exec "$@"', "sh", *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def consoles(self) -> str:
        """Return what the machines of the cloud have printed: why a test has failed."""
        logs = sorted((self.world.home / "instances").glob("*/console.log"))
        return "\n".join(
            f"{console}:\n{console.read_text(errors='replace')[-3000:]}" for console in logs
        )

    def end(self) -> None:
        """End what a test that has failed left going; a test's second failure says nothing."""
        for process in self.started:
            if process.returncode is None:
                process.kill()
                process.communicate()

    def __call__(self, who: str, *words: str, timeout: float = 600) -> Done:
        with self.start(who, *words) as process:
            out, err = process.communicate(timeout=timeout)
        return Done(process.returncode, out, err)

    def python(self, who: str, code: str) -> str:
        return self(who, "python3", "-c", code).succeeded().out

    def give_rights(self, who: str) -> None:
        """Have the owner make a user for somebody, with the rights of `cloudtune aws policy`."""
        document = self("owner", "cloudtune", "aws", "policy", "person").out
        key, secret = json.loads(self.python("owner", USER.format(who=who, document=document)))
        folder = self.world.home / "computers" / who / ".aws"
        folder.mkdir(parents=True)
        (folder / "credentials").write_text(
            f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
        )

    def files_of(self, who: str) -> Path:
        folder = self.world.home / "computers" / who / "work"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def script_on(self, who: str, trouble: str) -> None:
        """Write a script, its profile and its experiment into somebody's folder."""
        folder = self.files_of(who)
        write_experiment(folder, EXPERIMENT, TRAIN.format(trouble=trouble))
        profile = ScalingProfile(
            instance_type="g4dn.xlarge",
            epoch={1.0: Measurement(0.6)},
            launch=Measurement(1.0),
            boot=Measurement(8.0),
            start=Measurement(1.0),
            resize=Measurement(1.0),
            release=Measurement(2.0),
            script_hash=script_hash(folder / "train.py"),
            measured_at="2026-11-20T00:00:00Z",
            source="a test",
        )
        write(folder / "speeds.json", [profile])

    def instances(self) -> list[dict[str, Any]]:
        return list(json.loads(self.python("nobody", INSTANCES)))

    def alive(self) -> list[dict[str, Any]]:
        return [
            instance for instance in self.instances() if instance["state"] in {"pending", "running"}
        ]


@pytest.fixture(scope="module")
def outside(leaves_nothing: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    """An account that setup has seen, and two who may use it; at the end no instance is alive."""
    with isolated_account(tmp_path_factory.mktemp("outside")) as account:
        account("owner", "cloudtune", "aws", "setup", "--yes").succeeded()
        for who in ("ann", "bob"):
            account.give_rights(who)
        yield account
        assert not account.alive()


@contextmanager
def isolated_account(folder: Path) -> Iterator[Outside]:
    """Give an account on a cloud of its own; skips the test where there can't be one."""
    from tests.aws_stand_in import network  # with it comes moto, which takes a second
    from tests.aws_stand_in.world import World

    if why := network.unavailable():
        pytest.skip(f"an isolated cloud is not to be had: {why}")
    account = Outside(World(folder / "world", "--boot-seconds", "0.5"))
    try:
        with account.world:
            yield account
    finally:
        account.end()
