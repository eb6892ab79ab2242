"""What an experiment gets of the machine's AWS settings where it names nothing."""

from pathlib import Path

import pytest

from cloudtune.errors import CloudtuneError
from cloudtune.experiment import Experiment
from cloudtune.infra.aws import price_refresh, pricing
from cloudtune.infra.aws.account import inventory
from cloudtune.infra.aws.account.inventory import RunDefaults
from cloudtune.infra.aws.provider import AWS
from cloudtune.model.catalog import quota_name
from tests.builders.experiments import small_experiment


def experiment(folder: Path, **cloud: str) -> Experiment:
    return small_experiment(folder, cloud={"provider": "aws", **cloud})


@pytest.fixture(autouse=True)
def machine(no_aws: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with one profile, whose AWS can't be reached; returns its configuration."""
    config = tmp_path / "config"
    config.write_text("[profile team]\nregion = eu-west-3\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    # Without an answer each call is tried several times, some seconds apart.
    monkeypatch.setattr(inventory, "run_defaults", lambda *_: RunDefaults({}, ""))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    return config


@pytest.mark.parametrize(
    ("variables", "named", "region"),
    [
        ({}, {}, "us-east-1"),
        ({"AWS_PROFILE": "team"}, {}, "eu-west-3"),
        ({"AWS_PROFILE": "team", "AWS_DEFAULT_REGION": "eu-west-2"}, {}, "eu-west-2"),
        ({"AWS_DEFAULT_REGION": "eu-west-2", "AWS_REGION": "eu-west-1"}, {}, "eu-west-1"),
        ({"AWS_REGION": "eu-west-1"}, {"region": "us-west-2"}, "us-west-2"),
    ],
)
def test_region_defaults_to_aws_command(
    variables: dict[str, str],
    named: dict[str, str],
    region: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert AWS.with_account_defaults(experiment(tmp_path, **named)).cloud.region == region


@pytest.mark.parametrize(("region", "gb_month"), [("us-east-1", 0.08), ("eu-west-3", 0.0928)])
def test_an_instances_disk_costs_its_regions_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, region: str, gb_month: float
) -> None:
    defaults = RunDefaults({"image": "ami-1"}, "", disk_gb=100)
    monkeypatch.setattr(inventory, "run_defaults", lambda *_: defaults)
    monkeypatch.setattr(price_refresh, "disk_price", lambda _: 0.0928)
    wanted = AWS.with_account_defaults(experiment(tmp_path, region=region))
    an_hour = 100 * gb_month / 720 + 0.005
    assert wanted.charges.per_instance_hour == pytest.approx(an_hour)


def test_without_credentials_the_message_is_of_them(tmp_path: Path) -> None:
    wanted = AWS.with_account_defaults(experiment(tmp_path))
    with pytest.raises(CloudtuneError, match=r"credentials: Unable to locate.*aws sso login"):
        AWS.check(wanted)


@pytest.mark.parametrize(
    ("name", "market", "quota"),
    [
        ("p5.48xlarge", "spot", "spot p5"),
        ("p5.48xlarge", "on-demand", "on-demand p"),
        ("p5en.48xlarge", "spot", "spot p5"),
        ("p6-b200.48xlarge", "spot", "spot p6"),
        ("p6-b300.48xlarge", "spot", "spot p6"),
        ("p6-b200.48xlarge", "on-demand", "on-demand p"),
        ("p3.2xlarge", "spot", "spot p"),
        ("g4dn.xlarge", "spot", "spot g"),
    ],
)
def test_new_p_types_have_own_quotas(name: str, market: str, quota: str) -> None:
    assert quota_name(pricing.instance_types()[name], market) == quota  # type: ignore[arg-type]
