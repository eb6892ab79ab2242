"""Which clouds there are, and what an experiment may say of each: plain data, no cloud is loaded.

To add a cloud is a line in PROVIDERS, and a package in `infra/` (docs/architecture.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Registered:
    """A cloud's line: where its code is, and how its part of an experiment differs from others'.

    `implementation` is "module:name" of its `infra.provider.Provider`, loaded when it is used.
    `defaults` are fields of the section `cloud` that have another value there if nothing is
    written. Fields in `fixed` must keep their value; the message about another one says `why`.
    `own` are fields that only some clouds have. `here`: its instances are this very machine, and
    what runs here runs there. `packs`: instances fetch the environment that is built for
    them. `place` is the field that says where it is.
    """

    implementation: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    why: str = ""
    own: frozenset[str] = frozenset()
    here: bool = False
    packs: bool = True
    place: str = "region"

    @property
    def fetches(self) -> bool:
        """Whether instances fetch an environment."""
        return self.packs and not self.here

    @property
    def priced_by_its_user(self) -> bool:
        """Whether an hour costs what the experiment says, and nothing if it says nothing."""
        return not self.own.isdisjoint({"price", "prices"})


# By the name that stands in experiments; the first is the default.
PROVIDERS: dict[str, Registered] = {
    "emulated": Registered("cloudtune.infra.emulator.provider:EMULATED", here=True),
    "aws": Registered("cloudtune.infra.aws.provider:AWS", own=frozenset({"head_type", "regions"})),
    "local": Registered(
        "cloudtune.infra.local.provider:LOCAL",
        defaults={"instances": ("local-*",), "max_instances": 1},
        fixed=(
            *("region", "market", "zones", "vcpu_quotas"),
            *("image", "subnet", "subnets", "security_group", "instance_profile", "tags"),
            "request",
            *("instances", "max_instances"),
        ),
        why="is for rented instances, and provider local only has this machine; leave it out",
        own=frozenset({"slots", "price"}),
        here=True,
    ),
    "ray": Registered(
        "cloudtune.infra.ray.provider:RAY",
        defaults={"instances": ("*",), "address": "auto", "avoid": "10s"},
        fixed=(
            *("region", "market", "zones", "vcpu_quotas", "spot"),
            *("image", "subnet", "subnets", "security_group", "instance_profile", "tags"),
            "request",
        ),
        why="is for rented instances, and provider ray reserves a cluster's; leave it out",
        own=frozenset({"address", "slots", "prices"}),
        packs=False,
        place="address",
    ),
    "slurm": Registered(
        "cloudtune.infra.slurm.provider:SLURM",
        defaults={"instances": ("*",), "avoid": "1m"},
        fixed=(
            *("market", "zones", "vcpu_quotas", "spot"),
            *("image", "subnet", "subnets", "security_group", "instance_profile", "tags"),
        ),
        why="is for rented instances, and provider slurm submits jobs; leave it out",
        own=frozenset({"slots", "prices"}),
        packs=False,
    ),
}


def owners(name: str) -> tuple[str, ...]:
    """Return the clouds that a field is limited to; none where all clouds have it."""
    return tuple(provider for provider, line in PROVIDERS.items() if name in line.own)
