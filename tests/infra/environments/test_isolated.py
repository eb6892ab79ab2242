"""An instance with an address, a root and a role of its own fetches its environment."""

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from cloudtune.infra.environments.build import Built
from cloudtune.infra.environments.cache import EnvironmentCache
from cloudtune.infra.environments.delivery import Delivery
from tests.aws_stand_in import network

USES = """
"$python" -I -c 'import cloudtune, sys, tiny; print("uses", tiny.answer, sys.prefix)'
echo "took ${CLOUDTUNE_SETUP_SECONDS:?}"
"""
LAUNCH = """
import json, pathlib, boto3
asked = json.loads(pathlib.Path("asked.json").read_text())
s3, iam, ec2 = (boto3.client(each, "us-east-1") for each in ("s3", "iam", "ec2"))
s3.create_bucket(Bucket="bucket")
s3.upload_file("pack", "bucket", asked["key"])
iam.create_role(RoleName="node", AssumeRolePolicyDocument=json.dumps(asked["trust"]))
iam.put_role_policy(RoleName="node", PolicyName="p", PolicyDocument=json.dumps(asked["policy"]))
iam.create_instance_profile(InstanceProfileName="node")
iam.add_role_to_instance_profile(InstanceProfileName="node", RoleName="node")
ec2.run_instances(
    ImageId="ami-0c1000000000e8664", InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1,
    IamInstanceProfile={"Name": "node"}, UserData=asked["script"],
)
"""


def statement(action: str, **more: object) -> dict[str, object]:
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": action, **more}]}


def test_an_instance_fetches_its_environment_by_its_role(
    built: Built, tmp_path: Path, eventually: Callable[[Callable[[], object]], None]
) -> None:
    from tests.aws_stand_in.world import World  # with it comes moto, which takes a second

    if why := network.unavailable():
        pytest.skip(why)
    pack = EnvironmentCache(str(tmp_path / "storage"), built.place).put(built, lambda _line: None)
    key = f"runs/{Path(pack.uri).name}"
    there = Delivery(commands=("echo first",), pack=replace(pack, uri=f"s3://bucket/{key}"))
    asked = {
        "key": key,
        "trust": statement("sts:AssumeRole", Principal={"Service": "ec2.amazonaws.com"}),
        "policy": statement("s3:GetObject", Resource="arn:aws:s3:::bucket/*"),
        "script": f"#!/bin/bash\n{there.lines()}{USES}",
        "pack": asdict(pack),
    }
    home = tmp_path / "w"
    laptop = home / "computers" / "laptop"
    laptop.mkdir(parents=True)
    (laptop / "asked.json").write_text(json.dumps(asked))
    shutil.move(pack.uri, laptop / "pack")
    with World(home, "--boot-seconds", "0.2") as world:
        subprocess.run(world.on("laptop", "python3", "-c", LAUNCH), check=True)
        eventually(lambda: "took" in console(home))
    lines = console(home).splitlines()
    assert lines[1].startswith(f"cloudtune-node: environment {built.place.name} ")
    assert lines[3:5] == ["first", f"uses 42 {built.place}/venv"]


def console(home: Path) -> str:
    logs = list((home / "instances").glob("*/console.log"))
    return logs[0].read_text() if logs else ""
