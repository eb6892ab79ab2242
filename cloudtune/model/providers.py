"""The registered clouds, and the fields that experiments have for each, without loading a cloud.

To add a cloud, add a line to `_CORE` and a package to `infra/` (docs/architecture.md). Another
package adds one by an entry point of the group "cloudtune.providers" that names a `Registered`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudtune.plugins import Registry


@dataclass(frozen=True)
class Registered:
    """A cloud: where its code is, and how its section of an experiment differs from others'.

    - `implementation`: "module:name" of its `infra.provider.Provider`, loaded on use.
    - `defaults`: defaults of fields of the section `cloud` that differ for this cloud.
    - `fixed`: fields that must keep their value; the error about another value says `why`.
    - `own`: fields that only some clouds have.
    - `here`: its instances are this machine, so what runs here runs there.
    - `packs`: instances fetch an environment that is built for them.
    - `place`: the field that says where it is.
    - `shared`: others use its machines, too: without prices, what counts is the GPU-hours.
    """

    implementation: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    why: str = ""
    own: frozenset[str] = frozenset()
    here: bool = False
    packs: bool = True
    place: str = "region"
    shared: bool = False

    @property
    def fetches(self) -> bool:
        """Whether instances fetch an environment."""
        return self.packs and not self.here

    @property
    def priced_by_its_user(self) -> bool:
        """Whether the experiment sets the price of an hour, 0 by default."""
        return not self.own.isdisjoint({"price", "prices"})


# By name in experiments; the first is the default.
_CORE: dict[str, Registered] = {
    "emulated": Registered("cloudtune.infra.emulator.provider:EMULATED", here=True),
    "aws": Registered("cloudtune.infra.aws.provider:AWS", own=frozenset({"head_type", "regions"})),
    "local": Registered(
        "cloudtune.infra.local.provider:LOCAL",
        defaults={"instances": ("local-*",), "market": "on-demand", "max_instances": 1},
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
        defaults={"market": "on-demand", "address": "auto", "avoid": "10s"},
        fixed=(
            *("region", "market", "zones", "vcpu_quotas", "spot"),
            *("image", "subnet", "subnets", "security_group", "instance_profile", "tags"),
            "request",
        ),
        why="is for rented instances, and provider ray reserves a cluster's; leave it out",
        own=frozenset({"address", "slots", "prices"}),
        packs=False,
        place="address",
        shared=True,
    ),
    "slurm": Registered(
        "cloudtune.infra.slurm.provider:SLURM",
        defaults={"market": "on-demand", "avoid": "1m"},
        fixed=(
            *("market", "zones", "vcpu_quotas", "spot"),
            *("image", "subnet", "subnets", "security_group", "instance_profile", "tags"),
        ),
        why="is for rented instances, and provider slurm submits jobs; leave it out",
        own=frozenset({"slots", "prices"}),
        packs=False,
        shared=True,
    ),
}
PROVIDERS: Registry[Registered] = Registry("cloudtune.providers", _CORE, Registered)


def owners(name: str) -> tuple[str, ...]:
    """Return the clouds of the core that a field is limited to; none if all clouds have it."""
    return tuple(provider for provider, line in PROVIDERS.core.items() if name in line.own)
