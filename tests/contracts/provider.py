"""What every cloud promises; inherit it, and say how an experiment asks for the cloud."""

import math
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

import pytest

from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.infra.provider import (
    INTENT_TAG,
    LEASE_TAG,
    RUN_TAG,
    Calls,
    Provider,
    calls_to,
    find_provider,
)
from cloudtune.model.commands import Launch
from cloudtune.model.events import RefusalKind
from cloudtune.model.providers import PROVIDERS
from tests.builders.experiments import FIELDS

RUN = "contract"
HEAVY = ("boto3", "botocore", "moto", "ray", "torch")


class ProviderContract:
    """The suite of a cloud of that `name`.

    `cloud` and `more` are the least that an experiment says to rent there: its section cloud, and
    other fields. `incomplete` are such with something missing. `refusals` are codes of the cloud
    with their kinds.
    """

    name: str
    cloud: ClassVar[Mapping[str, Any]] = {}
    more: ClassVar[Mapping[str, Any]] = {}
    incomplete: ClassVar[Sequence[Mapping[str, Any]]] = ()
    refusals: ClassVar[Mapping[str, RefusalKind]] = {}

    @property
    def provider(self) -> Provider:
        return find_provider(self.name)

    def experiment(self, **changes: Any) -> Experiment:
        """Return an experiment that can be run there."""
        cloud = {"provider": self.name, **self.cloud}
        return Experiment(**{**FIELDS, "cloud": cloud, **self.more, **changes})

    # ---- before anything is rented ------------------------------------------------------------

    def test_it_is_found_by_its_name(self) -> None:
        assert self.provider.name == self.name
        assert find_provider(self.name) is self.provider

    def test_a_plan_does_not_wait_for_its_libraries(self) -> None:
        module = PROVIDERS[self.name].implementation.partition(":")[0]
        code = f"import {module}, sys; print(sorted({set(HEAVY)} & set(sys.modules)))"
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True
        )
        assert done.stdout == "[]\n"

    def test_experiment_types_have_prices(self, tmp_path: Path) -> None:
        settings = self.experiment().cloud
        catalog = self.provider.catalog(settings, ("on-demand",), tmp_path)
        named = self.provider.instance_types(settings)
        offers = catalog.matching(settings.instances, ("on-demand",), settings.zones)
        assert named
        assert {offer.instance_type for offer in offers} == set(named)
        for offer in catalog.offers:
            assert (offer.market, offer.region) == ("on-demand", settings.region)
            assert 0 <= offer.usd_per_hour < math.inf
            assert offer.gpus >= 1
        assert catalog.age_days(catalog.as_of) == 0

    def test_types_are_known_by_their_names(self) -> None:
        known = self.provider.known_types()
        assert all(machine.name == name for name, machine in known.items())

    def test_it_says_what_an_experiment_lacks(self) -> None:
        self.provider.check(self.experiment())
        for changes in self.incomplete:
            with pytest.raises(UsageError):
                self.provider.check(self.experiment(**changes))

    # ---- renting ---------------------------------------------------------------------------------

    def test_what_was_rented_is_found_and_given_back(self, tmp_path: Path) -> None:
        experiment = self.experiment()
        cloud = self.provider.open(experiment, tmp_path, pace=False)
        assert cloud.endpoint.region == experiment.cloud.region
        calls = calls_to(cloud.endpoint)
        try:
            assert calls.ours(RUN) == []
            machine = self.provider.instance_types(experiment.cloud)[0]
            launch = Launch("i000", machine.name, "on-demand")
            asked = self.provider.launch_request(launch, "#!/bin/sh\n:\n")
            tags = {**cloud.tags, RUN_TAG: RUN, INTENT_TAG: "i000", LEASE_TAG: "2050"}
            request = {**cloud.request, **asked}
            rented = calls.run_instance("token", tags, request)
            assert calls.run_instance("token", tags, request) == rented, "the same token"
            (result,) = calls.ours(RUN, ended=False)
            assert (result.id, result.run, result.intent) == (rented, RUN, "i000")
            assert (result.instance_type, result.lease) == (machine.name, "2050")
            assert result.billing
            assert set(cloud.tags.items()) <= set(result.tags.items())
            self.seen_from_outside(rented, tmp_path, cloud.endpoint.region)
            zones = self.provider.zones(cloud)
            assert list(zones) == sorted(set(zones))
            calls.terminate([rented])
            calls.terminate([rented])
            assert [item.id for item in self.wait_for_end(calls)] == [rented]
        finally:
            calls.terminate([item.id for item in calls.ours(RUN, ended=False)])
            cloud.close()
            cloud.close()

    def seen_from_outside(self, rented: str, home: Path, region: str) -> None:
        """Pass if a command that knows the region alone, as gc, finds what was rented."""
        seen = [
            instance.id
            for cloud in self.provider.clouds_in_use(home, [region], None)
            for instance in calls_to(cloud.endpoint).ours()
        ]
        assert seen.count(rented) == 1, "and whatever else there is"

    @staticmethod
    def wait_for_end(calls: Calls) -> list[Any]:
        """Return what is known of the run's instances once none of them bills."""
        give_up = time.monotonic() + 30.0
        while any(instance.billing for instance in calls.ours(RUN)):
            assert time.monotonic() < give_up
            time.sleep(0.05)
        return calls.ours(RUN)

    def test_refusals_are_of_our_kinds(self, tmp_path: Path) -> None:
        cloud = self.provider.open(self.experiment(), tmp_path, pace=False)
        calls = calls_to(cloud.endpoint)
        cloud.close()
        assert calls.errors == self.provider.errors()
        assert calls.refusal_kind("no word of any cloud") == "unknown"
        for code, kind in self.refusals.items():
            assert calls.refusal_kind(code) == kind
            assert kind in get_args(RefusalKind)
            assert calls.is_permanent(code) == (kind in {"denied", "unknown"})

    def test_a_lost_answer_is_nothing_definite(self, tmp_path: Path) -> None:
        cloud = self.provider.open(self.experiment(), tmp_path, pace=False)
        calls = calls_to(cloud.endpoint)
        cloud.close()
        assert not calls.is_definite(TimeoutError())
