"""Secrets in stores of AWS: setup lets instances read those that it names, and a run says which."""

from pathlib import Path

import boto3
import pytest

from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.node.variables import SecretError
from cloudtune.lifecycle import variables
from cloudtune.lifecycle.runner import preflight
from tests.aws_stand_in.policies import Asked, verdict
from tests.bench import Bench, called
from tests.builders.experiments import experiment_on_aws

REGION = "us-east-1"
TOKEN = "hf-of-nobody"
NAMED = "ssm:/team/token,aws-secretsmanager:wandb"


@pytest.fixture(autouse=True)
def account(own_account: Access) -> None:
    """An account with a parameter and a secret, both found as in AWS."""
    boto3.client("ssm", REGION).put_parameter(Name="/team/token", Value=TOKEN, Type="SecureString")
    text = '{"key": "wb-of-nobody", "team": 7}'
    boto3.client("secretsmanager", REGION).create_secret(Name="wandb", SecretString=text)


def renting(tmp_path: Path, **secrets: str) -> Experiment:
    return experiment_on_aws(tmp_path, secrets=secrets)


def test_a_run_names_what_its_instances_may_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    called(capsys, "aws", "setup", "--yes").succeeded()
    wanted = renting(tmp_path, HF_TOKEN="ssm:/team/token", OTHER="aws-secretsmanager:none")
    with pytest.raises(UsageError) as refused:
        preflight(wanted)
    message = str(refused.value)
    assert "secrets.OTHER: us-east-1 has no aws-secretsmanager:none" in message
    assert "secrets.HF_TOKEN: instances may not read ssm:/team/token" in message
    assert "aws setup --region us-east-1 --secrets ssm:/team/token" in message
    assert "nothing was launched" in message

    called(capsys, "aws", "setup", "--yes", "--secrets", NAMED).succeeded("update NodeRole")
    preflight(renting(tmp_path, HF_TOKEN="ssm:/team/token", KEY="aws-secretsmanager:wandb#key"))
    assert "nothing to create" in called(capsys, "aws", "setup", "--yes").out


def test_the_role_of_instances_reads_those_alone(capsys: pytest.CaptureFixture[str]) -> None:
    called(capsys, "aws", "setup", "--yes", "--secrets", NAMED).succeeded()
    assert reads("ssm:GetParameter", "ssm", "parameter/team/token") == "allowed"
    assert reads("ssm:GetParameter", "ssm", "parameter/team/other") == "not allowed"
    get = "secretsmanager:GetSecretValue"
    assert reads(get, "secretsmanager", "secret:wandb-AbCdEf") == "allowed"
    assert reads(get, "secretsmanager", "secret:wandb-other-AbCdEf") == "not allowed"
    called(capsys, "aws", "setup", "--yes", "--secrets", "none").succeeded("update NodeRole")
    assert reads("ssm:GetParameter", "ssm", "parameter/team/token") == "not allowed"


def reads(action: str, service: str, resource: str) -> str:
    iam = boto3.client("iam", REGION)
    policy = iam.get_role_policy(RoleName="cloudtune-node-us-east-1", PolicyName="cloudtune")
    arn = f"arn:aws:{service}:{REGION}:123456789012:{resource}"
    return verdict([policy["PolicyDocument"]], Asked(action, arn, {}))


@pytest.mark.parametrize("names", ["file:token", "token", "ssm:/team/*"])
def test_setup_refuses_what_is_no_secret(names: str, capsys: pytest.CaptureFixture[str]) -> None:
    called(capsys, "aws", "setup", "--yes", "--secrets", names).refused()


def test_an_instance_reads_those_that_its_run_names(tmp_path: Path) -> None:
    sources = {"HF_TOKEN": "ssm:/team/token", "KEY": "aws-secretsmanager:wandb#key"}
    taken = variables.take(renting(tmp_path, **sources, TEAM="aws-secretsmanager:wandb#team"))
    assert not taken.values, "this machine reads none of them"
    assert taken.read() == {"HF_TOKEN": TOKEN, "KEY": "wb-of-nobody", "TEAM": "7"}
    assert TOKEN not in repr(taken)
    wrong = variables.take(renting(tmp_path, KEY="aws-secretsmanager:wandb#none"))
    with pytest.raises(SecretError, match=r"secrets.KEY: wandb is no JSON object with a key none"):
        wrong.read()


def test_elsewhere_this_machine_reads_them(bench: Bench) -> None:
    path = bench.folder / "experiment.yaml"
    text = "name: x\ntrain: train.py:train\nmetric: {name: loss, mode: min}\nepochs: {max: 2}\n"
    text += "search: {lr: {uniform: [0, 1]}}\ntrials: 2\nlimits: {deadline: 5m}\n"
    (bench.folder / "train.py").write_text(SCRIPT)
    path.write_text(f"{text}cloud: {{provider: local}}\nsecrets: {{HF_TOKEN: ssm:/team/token}}\n")
    bench.here("try", path).succeeded("one trial reported after ")
    path.write_text(path.read_text().replace("/team/token", "/team/none"))
    bench.here("run", path).refused("secrets.HF_TOKEN: ssm:/team/none can't be read:")
    assert bench.nothing_launched()


SCRIPT = f"""
import os
import cloudtune

def train(config):
    assert os.environ["HF_TOKEN"] == {TOKEN!r}
    for _ in cloudtune.epochs():
        cloudtune.report({{"loss": 1.0}})
"""
