"""Placement scores: what they weigh, what is told of them, and what stands in without them."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from cloudtune.experiment import Experiment
from cloudtune.infra.aws import placement, price_refresh, pricing
from cloudtune.infra.aws.placement import Wished, pools_by_score
from cloudtune.infra.aws.spot_prior import by_score, spot_prior
from cloudtune.infra.emulator.provider import EMULATED
from cloudtune.infra.provider import Endpoint
from cloudtune.model.catalog import SpotBehaviour
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.serialization import decode, encode
from cloudtune.planning.make import make_plan
from cloudtune.planning.problem import problem_of, stored_profiles
from cloudtune.planning.proposal import Proposal, propose, to_json

NOW = datetime(2026, 11, 21, 21, 5, tzinfo=UTC).timestamp()
AWS = Endpoint("us-east-1", None, "test", "test")
TYPES = ("p3.16xlarge", "p3.2xlarge", "p3.8xlarge")
ZONES = [{"ZoneId": "use1-az4", "ZoneName": "us-east-1a"}]


def wished(*zones: str, types: tuple[str, ...] = TYPES) -> Wished:
    return Wished("us-east-1", types, 4, zones)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stubber:
    """Return what answers for AWS: whatever is added, in order, and nothing else."""
    client = boto3.client(
        "ec2", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    stubber = Stubber(client)
    monkeypatch.setattr(placement, "client", lambda *_: client)
    stubber.activate()
    return stubber


def answer(stub: Stubber, *scores: dict[str, Any], zones: bool = False) -> None:
    if zones:
        stub.add_response("describe_availability_zones", {"AvailabilityZones": ZONES})
    asked = {
        "InstanceTypes": list(TYPES),
        "TargetCapacity": 4,
        "TargetCapacityUnitType": "units",
        "SingleAvailabilityZone": zones,
        "RegionNames": ["us-east-1"],
    }
    found = [{"Region": "us-east-1", **score} for score in scores]
    stub.add_response("get_spot_placement_scores", {"SpotPlacementScores": found}, asked)


def there(ways: tuple[SpotBehaviour, ...]) -> float:
    return sum(way.availability for way in ways) / len(ways)


def test_a_low_score_makes_scarce_pools_likelier_and_rules_none_out() -> None:
    shares = [there(by_score(score)) for score in range(1, 11)]
    assert shares == sorted(shares)
    plain = there(spot_prior())
    assert shares[0] < plain - 0.1
    assert shares[9] > plain + 0.1
    assert shares[4] < plain < shares[5], "halfway it says nothing"
    assert all(set(by_score(score)) == set(spot_prior()) for score in range(2, 10))
    assert {len(by_score(score)) for score in range(1, 11)} == {120}


def test_scores_are_of_the_account_s_own_zones(stub: Stubber, tmp_path: Path) -> None:
    answer(
        stub,
        {"AvailabilityZoneId": "use1-az4", "Score": 3},
        {"AvailabilityZoneId": "use1-az9", "Score": 9},
        zones=True,
    )
    first, second = pools_by_score(AWS, tmp_path, NOW, wished("us-east-1a", "us-east-1b"))
    assert first.behaviours == by_score(3)
    assert first.source.startswith("placement score 3 of 10 (us-east-1a, asked 21:05 UTC)")
    assert second.behaviours == spot_prior()
    assert "AWS gave none for us-east-1b" in second.source


def test_a_score_is_kept_for_an_hour(stub: Stubber, tmp_path: Path) -> None:
    answer(stub, {"Score": 8})
    (asked,) = pools_by_score(AWS, tmp_path, NOW, wished())
    assert pools_by_score(AWS, tmp_path, NOW + 3599, wished()) == [asked]
    answer(stub, {"Score": 2})
    (again,) = pools_by_score(AWS, tmp_path, NOW + 3600, wished())
    assert again.behaviours == by_score(2)
    stub.assert_no_pending_responses()
    (tmp_path / "placement-us-east-1.json").write_text(json.dumps({"wished": 1}))
    answer(stub, {"Score": 8})
    assert pools_by_score(AWS, tmp_path, NOW, wished()) == [asked], "a damaged file is none"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("UnauthorizedOperation", "it needs ec2:GetSpotPlacementScores"),
        ("RequestLimitExceeded", "RequestLimitExceeded"),
    ],
)
def test_no_answer_leaves_the_prior_and_says_why(
    stub: Stubber, tmp_path: Path, code: str, told: str
) -> None:
    stub.add_client_error("get_spot_placement_scores", code)
    (found,) = pools_by_score(AWS, tmp_path, NOW, wished())
    assert found.behaviours == spot_prior()
    assert "no placement score" in found.source
    assert told in found.source
    assert not list(tmp_path.iterdir()), "it is asked again next time"


def test_one_type_is_not_asked_for(stub: Stubber, tmp_path: Path) -> None:
    """AWS gives a low score to all who name fewer than three types: it says nothing."""
    (found,) = pools_by_score(AWS, tmp_path, NOW, wished(types=TYPES[:1]))
    assert found.behaviours == spot_prior()
    assert "no fewer than 3 instance types" in found.source
    stub.assert_no_pending_responses()


def proposed(folder: Path, monkeypatch: pytest.MonkeyPatch, **said: object) -> Proposal:
    """Plan an experiment on AWS whose prices are those of the table."""
    monkeypatch.setenv("CLOUDTUNE_HOME", str(folder / "home"))
    monkeypatch.setattr(
        price_refresh, "live_prices", lambda _e, _f, _n, m, z: pricing.catalog("us-east-1", m, z)
    )
    changes = {
        "cloud.provider": "aws",
        "cloud.instances": list(TYPES),
        "cloud.market": "spot",
        "cloud.max_instances": 4,
        "trials": 2,
        **said,
    }
    asked = Experiment.load("examples/digits/experiment.yaml", changes)
    problem = problem_of(asked, stored_profiles(asked, "resnet50-cifar10@v100"))
    return propose(make_plan(problem, Limits(10 * 3600.0, 400.0), runs=2))


def test_a_plan_on_aws_says_whose_figures_it_goes_by(
    stub: Stubber, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(stub, {"Score": 3})
    found = proposed(tmp_path, monkeypatch)
    (told,) = [text for text in found.assumptions if text.startswith("spot: available")]
    assert "placement score 3 of 10 (us-east-1, asked" in told
    assert "not of interruptions" in told
    assert told in to_json(found)["assumptions"]


def test_what_the_experiment_says_is_not_asked_of_aws(
    stub: Stubber, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"losses_per_hour": 0.1, "availability": 0.9}
    found = proposed(tmp_path, monkeypatch, **{"cloud.spot": said})
    assert any("as cloud.spot or the trace says" in text for text in found.assumptions)
    stub.assert_no_pending_responses()


def test_figures_go_with_the_job(
    stub: Stubber, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saved plan, a resumed run and a replay read them there; nobody asks again."""
    answer(stub, {"Score": 3})
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path))
    monkeypatch.setattr(
        price_refresh, "live_prices", lambda _e, _f, _n, m, z: pricing.catalog("us-east-1", m, z)
    )
    asked = Experiment.load(
        "examples/digits/experiment.yaml",
        {
            "cloud.provider": "aws",
            "cloud.instances": list(TYPES),
            "cloud.market": "spot",
            "cloud.max_instances": 4,
        },
    )
    found = problem_of(asked, stored_profiles(asked, "resnet50-cifar10@v100")).rentables
    read = [decode(Rentable, json.loads(json.dumps(encode(each)))) for each in found]
    assert tuple(read) == found
    assert all(each.behaviours == by_score(3) for each in read)
    assert all(each.behaviours_from.startswith("placement score 3") for each in read)


def test_the_emulated_cloud_has_no_account(tmp_path: Path) -> None:
    settings = Experiment.load("examples/digits/experiment.yaml").cloud
    assert EMULATED.spot_pools(settings, tmp_path) == []
