"""An account on an isolated cloud, and computers outside it that have its keys and nothing else."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from cloudtune.infra.emulator.isolated import network
from cloudtune.infra.emulator.isolated.world import World
from cloudtune.profiles.store import script_hash, write
from cloudtune.scaling import Measurement, ScalingProfile
from tests.bench import TRAIN, Done

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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

INSTANCES = """
import boto3, json, sys
ec2 = boto3.client("ec2", region_name="us-east-1")
found = [i for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]]
told = [
    {
        "id": i["InstanceId"],
        "state": i["State"]["Name"],
        "address": i.get("PrivateIpAddress"),
        **{t["Key"].removeprefix("cloudtune:"): t["Value"] for t in i.get("Tags", [])},
    }
    for i in found
]
print(json.dumps(told))
"""


@dataclass
class Outside:
    """What people do on their computers, and what the cloud has on record."""

    world: World

    def start(self, who: str, *words: str) -> subprocess.Popen[str]:
        """Start a command in the folder `work` of somebody's computer."""
        return subprocess.Popen(
            self.world.on(who, "sh", "-c", 'mkdir -p work; cd work; exec "$@"', "sh", *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, who: str, *words: str, timeout: float = 200) -> Done:
        """Run a command there to its end."""
        with self.start(who, *words) as process:
            out, err = process.communicate(timeout=timeout)
        return Done(process.returncode, out, err)

    def python(self, who: str, code: str) -> str:
        """Run Python there; returns what it printed."""
        done = self(who, "python3", "-c", code)
        assert done.code == 0, done.err
        return done.out

    def files_of(self, who: str) -> Path:
        """Return a computer's folder `work`."""
        folder = self.world.home / "computers" / who / "work"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def script_on(self, who: str, trouble: str) -> None:
        """Write a script, its profile and its experiment into somebody's folder."""
        folder = self.files_of(who)
        (folder / "train.py").write_text(TRAIN.format(trouble=trouble))
        (folder / "experiment.yaml").write_text(EXPERIMENT)
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
        """Return what EC2 has on record."""
        return list(json.loads(self.python("nobody", INSTANCES)))

    def alive(self) -> list[dict[str, Any]]:
        """Return the instances that bill."""
        return [each for each in self.instances() if each["state"] in {"pending", "running"}]


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    """An account that `cloudtune aws setup` has seen; at the end none of its instances is alive."""
    if why := network.unavailable():
        pytest.skip(f"an isolated cloud is not to be had: {why}")
    with World(tmp_path / "world", "--boot-seconds", "0.5") as world:
        made = Outside(world)
        done = made("owner", "cloudtune", "aws", "setup", "--yes")
        assert done.code == 0, done.out + done.err
        yield made
        assert not made.alive()
