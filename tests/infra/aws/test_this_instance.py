"""Whether a machine on EC2 can control a run itself, or a head has to."""

from pathlib import Path

import pytest

from cloudtune.experiment import Experiment
from cloudtune.infra.aws import this_instance
from cloudtune.infra.aws.price_checks import Quotes
from cloudtune.infra.aws.provider import AWS
from tests.builders.experiments import small_experiment

GROUPS = "network/interfaces/macs/02:01/security-group-ids"
MEMBER = {
    "instance-id": "i-1",
    "placement/region": "us-east-1",
    "network/interfaces/macs/": "02:01/\n02:02/",
    GROUPS: "sg-other\nsg-ours",
}


def experiment(folder: Path) -> Experiment:
    place = {"provider": "aws", "region": "us-east-1", "security_group": "sg-ours"}
    return small_experiment(folder, cloud=place, charges={"per_instance_hour": "$0.02"})


@pytest.mark.parametrize(
    ("metadata", "force", "rented"),
    [
        ({}, False, True),  # a laptop
        (MEMBER, False, False),
        (MEMBER, True, True),
        ({**MEMBER, "placement/region": "eu-west-1"}, False, True),
        ({**MEMBER, GROUPS: "sg-other"}, False, True),
        ({"instance-id": "i-1"}, False, False),  # its metadata say nothing else
    ],
)
def test_head_is_rented_unless_reachable(
    metadata: dict[str, str],
    force: bool,
    rented: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(path: str, *, seconds: float) -> str:
        del seconds
        if path not in metadata:
            raise OSError(path)
        return metadata[path]

    monkeypatch.setattr(this_instance, "metadata", read)
    monkeypatch.setattr(
        "cloudtune.infra.aws.price_refresh.latest_quotes",
        lambda *_: Quotes("us-east-1", "", 0.0, {}, {}),
    )
    offer = AWS.head(experiment(tmp_path), tmp_path, force=force)
    assert (offer is not None) == rented
    if offer is not None:
        assert offer.usd_per_hour == pytest.approx(0.1008 + 0.02), "with its disk and address"
    result = this_instance.this_instance()
    obstacles = [] if result is None else list(result.obstacles(experiment(tmp_path).cloud))
    assert bool(obstacles) == (rented and bool(metadata) and not force)
    assert all("(--head)" in line for line in obstacles)
