# ruff: noqa: ARG002  a cluster needs few of the arguments
"""An existing Ray cluster as a cloud: its nodes are instances to reserve."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from cloudtune.clock import utc_date
from cloudtune.errors import UsageError
from cloudtune.infra.provider import Cloud, Endpoint, Provider
from cloudtune.model.catalog import Catalog, InstanceType, Market, Offer
from cloudtune.model.text import count_noun

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from cloudtune.experiment.cloud import CloudSettings as Settings
    from cloudtune.experiment.schema import Experiment
    from cloudtune.infra.cluster.base import Rental
    from cloudtune.infra.ray.calls import RayCalls
    from cloudtune.infra.ray.joined import JoinedCluster
    from cloudtune.infra.ray.view import ClusterView, RayNode
    from cloudtune.model.commands import Launch
    from cloudtune.model.scaling import ScalingProfile


class RayCluster(Provider):
    """The cluster at `cloud.address`: its nodes are reserved, and further ones requested."""

    name = "ray"
    asks_first = ""
    paced = False
    has_gpus = True

    def catalog(self, settings: Settings, markets: Sequence[Market], home: Path) -> Catalog:
        """Return the types of the present nodes, and those that the experiment names."""
        offers = tuple(
            Offer(kind, "on-demand", settings.region, price, minimum_seconds=0.0)
            for kind, price in _kinds(settings, _view(settings).nodes())
        )
        return Catalog(offers, f"the Ray cluster at {_view(settings).address}", utc_date())

    def with_account_defaults(self, experiment: Experiment) -> Experiment:
        """Return an experiment with the cluster's own address, and as many nodes as it may have.

        Raises:
            UsageError: there is no such cluster, or it can't be joined, or it has no GPUs.
        """
        settings = experiment.cloud
        view = _view(settings)
        view.check_versions()
        fields: dict[str, object] = {"address": view.address, "region": view.address}
        named = settings.max_instances
        if named is None or not view.scales():
            present = max(1, sum(self._present(settings, view).values()))
            fields["max_instances"] = present if named is None else min(present, named)
        cloud = settings.model_copy(update=fields)
        return experiment.model_copy(update={"cloud": cloud})

    def _present(self, settings: Settings, view: ClusterView) -> Counter[str]:
        """Return how many instances of each named type the present nodes hold."""
        gpus = {kind.name: kind.gpus for kind in self.instance_types(settings)}
        count = Counter[str]()
        for node in view.nodes():
            name = node.kind.name
            if name in gpus:
                count[name] += node.kind.gpus // gpus[name]
        return count

    def capacity(self, settings: Settings) -> Mapping[str, int]:
        """Return how many instances its nodes hold; {} if an autoscaler brings more."""
        view = _view(settings)
        return {} if view.scales() else self._present(settings, view)

    def occupancy(self, settings: Settings) -> str:
        names = {kind.name for kind in self.instance_types(settings)}
        nodes = [node for node in _view(settings).nodes() if node.kind.name in names]
        free = sum([node.free_gpus for node in nodes])
        gpus = sum([node.kind.gpus for node in nodes])
        if free == gpus:
            return ""
        return f"{free} of the cluster's {count_noun(gpus, 'GPU')} free now: the plan counts on all"

    def check(self, experiment: Experiment) -> None:
        """Pass if the nodes may share the storage, and have the Python that is asked for.

        Raises:
            UsageError: they are several machines, and it is the folder of one; or they can't.
        """
        setup = experiment.setup
        project = isinstance(setup.pip, str) and setup.pip.endswith(".toml")
        if setup.python is not None or setup.commands or project:
            raise UsageError(
                "setup: the nodes of a Ray cluster have a Python and a system of their own; write "
                "requirements.txt or a list for pip, or python_path, and leave the rest out"
            )
        addresses = {node.address for node in _view(experiment.cloud).nodes()}
        default = type(experiment).model_fields["storage"].default
        if experiment.storage == default and len(addresses) > 1:
            raise UsageError(
                "storage: the nodes of the cluster need a shared one: write a folder that all of "
                "them have, or s3://bucket/prefix"
            )

    def open(
        self,
        experiment: Experiment,
        home: Path,
        *,
        pace: bool,
        profiles: Sequence[ScalingProfile] = (),
        adopt: bool = False,
    ) -> Cloud:
        from cloudtune.infra.ray.view import GROUP  # noqa: PLC0415  Ray takes long

        settings = experiment.cloud
        view = _view(settings)
        nodes = view.nodes()
        kinds = _kinds(settings, nodes)
        # An autoscaler may not know a label of its nodes: one is asked for only where it helps.
        selects = len(kinds) > 1 and all(node.labelled for node in nodes)
        request = {
            kind.name: {
                "gpus": kind.gpus,
                "usd_per_hour": price,
                "selector": {GROUP: kind.name} if selects else {},
            }
            for kind, price in kinds
        }
        cluster = {"scales": view.scales(), "code": _code(experiment)}
        return Cloud(_endpoint(settings.region), {"kinds": request, **cluster}, {})

    def clouds_in_use(self, home: Path, regions: Collection[str], asked: str | None) -> list[Cloud]:
        """Return the clusters that runs of this machine were on, if they answer."""
        clouds = []
        for region in sorted(regions):
            with contextlib.suppress(UsageError):  # it has ended, and all on it
                clouds.append(Cloud(_endpoint(region), {}, {}))
        return clouds

    def enter(self, endpoint: Endpoint, home: Path, instance: str, words: Sequence[str]) -> int:
        if not words:
            raise UsageError(
                "provider ray: a Ray cluster has no terminals; `cloudtune exec` runs a command"
            )
        return self.calls(endpoint).execute(instance, words)

    def calls(self, endpoint: Endpoint) -> RayCalls:
        from cloudtune.infra.ray.calls import RayCalls  # noqa: PLC0415  Ray takes long

        return RayCalls(endpoint.url or "")

    def launch_request(self, launch: Launch, user_data: str) -> Mapping[str, object]:
        """Return the type: a node that is there boots nothing."""
        return {"instance_type": launch.instance_type}

    def own_address(self) -> str:
        """Refuse: the nodes are in a cluster already."""
        raise NotImplementedError

    def joined(self, folder: Path, rental: Rental) -> JoinedCluster:
        from cloudtune.infra.ray.joined import JoinedCluster  # noqa: PLC0415  Ray takes long

        return JoinedCluster(folder, rental)


def _view(settings: Settings) -> ClusterView:
    from cloudtune.infra.ray.view import ClusterView, resolve  # noqa: PLC0415  Ray takes long

    return ClusterView(resolve(settings.region))


def _endpoint(region: str) -> Endpoint:
    from cloudtune.infra.ray.view import resolve  # noqa: PLC0415  Ray takes long

    return Endpoint(region, resolve(region), provider="ray")


def _code(experiment: Experiment) -> dict[str, object]:
    """Return the part of Ray's runtime environment that the experiment asks for."""
    setup = experiment.setup
    pip = setup.pip
    if isinstance(pip, str):
        return {"pip": str(experiment.directory / pip)}
    if setup.python_path is not None:
        return {"py_executable": setup.python_path}
    return {"pip": list(pip)} if pip else {}


def _kinds(settings: Settings, nodes: Sequence[RayNode]) -> list[tuple[InstanceType, float]]:
    """Return the types of instances, by name: what each has of a node, and costs an hour."""
    types = {node.kind.name: node.kind for node in nodes}
    named = [name for name in settings.instances if not set(name) & set("*?[")]
    for name in named:
        if name not in types and settings.slots:
            types[name] = InstanceType(name, settings.slots, "gpu", 0, 0, 0)
    kinds = []
    for name, kind in sorted(types.items()):
        gpus = min(settings.slots or kind.gpus, kind.gpus)
        node = settings.usd_per_hour(kind.gpus, settings.prices.get(name))
        kinds.append((replace(kind, gpus=gpus), node * gpus / kind.gpus))
    if not kinds:
        raise UsageError(
            "cloud.instances: no node of the cluster has a GPU now; if its autoscaler brings "
            "some, write their type, and how many GPUs of one an instance has: "
            "`instances: [a100-node]`, `slots: 8`"
        )
    return kinds


RAY = RayCluster()
