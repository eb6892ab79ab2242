"""A made-up cloud: all that one more cloud needs, in one module."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cloudtune.errors import UsageError
from cloudtune.experiment.cloud import CloudSettings as Settings
from cloudtune.experiment.schema import Experiment
from cloudtune.infra.provider import (
    INTENT_TAG,
    LEASE_TAG,
    RUN_TAG,
    Calls,
    Cloud,
    Endpoint,
    Instance,
    Provider,
)
from cloudtune.model.catalog import Catalog, InstanceType, Market, Offer
from cloudtune.model.commands import Launch
from cloudtune.model.events import RefusalKind
from cloudtune.model.scaling import ScalingProfile

ROVER = InstanceType("rover", 1, "v100", 16384, 8, 65536)
KINDS: dict[str, RefusalKind] = {"NewMoon": "capacity", "FullMoon": "quota"}


class MoonError(Exception):
    """The Moon said no."""


@dataclass
class MoonCalls(Calls):
    rented: dict[str, Instance]
    errors: tuple[type[Exception], ...] = (MoonError,)

    def code(self, error: BaseException) -> str:
        return str(error)

    def is_definite(self, error: BaseException) -> bool:
        return isinstance(error, MoonError)

    def refusal_kind(self, code: str) -> RefusalKind:
        return KINDS.get(code, "unknown")

    def run_instance(self, token: str, tags: Mapping[str, str], request: Mapping[str, Any]) -> str:
        own = (tags[RUN_TAG], tags[INTENT_TAG], tags[LEASE_TAG])
        rover = Instance(f"m-{token}", *own, request["kind"], "running", 0.0, None, "", tags)
        return self.rented.setdefault(token, rover).id

    def ours(self, run: str | None = None, *, ended: bool = True) -> list[Instance]:
        result = self.rented.values()
        return [it for it in result if run in {None, it.run} and (ended or it.billing)]

    def terminate(self, ids: Sequence[str]) -> None:
        for token, it in self.rented.items():
            if it.id in ids:
                self.rented[token] = replace(it, state="terminated", ended_at=1.0)


@dataclass
class Moon(Provider):
    """The Moon: a zone, a price, and a rule of its own."""

    name: str = "moon"
    asks_first: str = "the Moon"
    paced: bool = False
    has_gpus: bool = False
    rented: dict[str, Instance] = field(default_factory=dict)

    def known_types(self) -> Mapping[str, InstanceType]:
        return {ROVER.name: ROVER}

    def instance_types(self, settings: Settings) -> list[InstanceType]:
        return [ROVER] if ROVER.name in settings.instances else []

    def catalog(self, settings: Settings, markets: Sequence[Market], home: Path) -> Catalog:
        offers = tuple(Offer(ROVER, market, settings.region, 3.6) for market in markets)
        return Catalog(offers, "NASA", "1969-07-20")

    def check(self, experiment: Experiment) -> None:
        if experiment.cloud.image is not None:
            raise UsageError("cloud.image: there is no choice on the Moon; leave it out")

    def open(
        self,
        experiment: Experiment,
        home: Path,
        *,
        pace: bool,
        profiles: Sequence[ScalingProfile] = (),
        adopt: bool = False,
    ) -> Cloud:
        return Cloud(Endpoint(experiment.cloud.region, provider="moon"), {}, {})

    def clouds_in_use(self, home: Path, regions: Collection[str], asked: str | None) -> list[Cloud]:
        named = {*regions, *([asked] if asked else [])}
        return [Cloud(Endpoint(region, provider="moon"), {}, {}) for region in sorted(named)]

    def zones(self, cloud: Cloud) -> tuple[str, ...]:
        return ("near-side",)

    def calls(self, endpoint: Endpoint) -> MoonCalls:
        return MoonCalls(self.rented)

    def errors(self) -> tuple[type[Exception], ...]:
        return (MoonError,)

    def launch_request(self, launch: Launch, user_data: str) -> Mapping[str, Any]:
        return {"kind": launch.instance_type, "script": user_data}

    def own_address(self) -> str:
        return "127.0.0.1"


MOON = Moon()
