# ruff: noqa: ARG002  a cluster needs few of the arguments
"""A Slurm cluster as a cloud: its partitions are instance types, and its jobs are instances."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from cloudtune.clock import unix_time, utc_date
from cloudtune.errors import UsageError
from cloudtune.experiment.cloud import CloudSettings as Settings
from cloudtune.experiment.schema import Experiment
from cloudtune.infra.node.boot import INSTANCE_VARIABLE
from cloudtune.infra.node.entering import SHELL, entering
from cloudtune.infra.provider import Cloud, Endpoint, HeadOffer, Preflight, Provider
from cloudtune.infra.slurm import nodes
from cloudtune.infra.slurm.calls import (
    SlurmCalls,
    SlurmError,
    foretold_start,
    run_step,
    time_option,
)
from cloudtune.model.catalog import Catalog, InstanceType, Market, Offer
from cloudtune.model.commands import Launch
from cloudtune.model.scaling import ScalingProfile


class Slurm(Provider):
    """The cluster to which this machine submits jobs."""

    name = "slurm"
    asks_first = ""
    paced = False
    has_gpus = True

    def catalog(self, settings: Settings, markets: Sequence[Market], home: Path) -> Catalog:
        """Return what each partition has, at the price that the experiment gives it."""
        offers = [
            Offer(
                machine,
                "on-demand",
                settings.region,
                _usd_per_hour(settings, kind, machine),
                minimum_seconds=0.0,
            )
            for kind, machine in _kinds(settings)
        ]
        return Catalog(tuple(offers), f"the Slurm cluster {settings.region}", utc_date())

    def with_account_defaults(self, experiment: Experiment) -> Experiment:
        """Return an experiment with the cluster's name, and as many instances as it has room for.

        Raises:
            UsageError: there is no Slurm here, or another cluster; or no partition has what is
                asked for.
        """
        settings = experiment.cloud
        here = nodes.cluster_name()
        if "region" in settings.model_fields_set and settings.region != here:
            raise UsageError(
                f"cloud.region: this machine submits to the cluster {here}, not to "
                f"{settings.region}; leave it out"
            )
        named = settings.max_instances
        settings = settings.model_copy(update={"region": here})
        present = sum(self.capacity(settings).values())
        instances = present if named is None else min(present, named)
        cloud = settings.model_copy(update={"max_instances": instances})
        return experiment.model_copy(update={"cloud": cloud})

    def capacity(self, settings: Settings) -> Mapping[str, int]:
        """Return how many instances of each type its nodes hold.

        A node of several partitions counts in one of them: the cheapest, then the one whose jobs
        may last longest, then the default partition.
        """

        def preference(item: tuple[nodes.NodeKind, InstanceType]) -> tuple[float, float, bool, str]:
            kind, machine = item
            usd = _usd_per_hour(settings, kind, machine) / machine.gpus
            return usd, -kind.limit_seconds, not kind.is_default, machine.name

        named = sorted(self._select_kinds(settings), key=preference)
        shares = nodes.share_hosts(kind for kind, _ in named)
        return {
            machine.name: len(hosts) * max(1, kind.node_gpus // machine.gpus)
            for (kind, machine), hosts in zip(named, shares, strict=True)
        }

    def _select_kinds(self, settings: Settings) -> list[tuple[nodes.NodeKind, InstanceType]]:
        named = {machine.name for machine in self.instance_types(settings)}
        return [(kind, machine) for kind, machine in _kinds(settings) if machine.name in named]

    def check(self, experiment: Experiment) -> None:
        """Pass if the jobs find a Python without building one.

        Raises:
            UsageError: they can't.
        """
        if experiment.setup.builds:
            raise UsageError(
                "setup: the nodes of a Slurm cluster have a system of their own; write "
                "setup.python_path, the Python of an environment that all nodes have, with "
                "cloudtune in it, and leave pip and python out"
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
        """Return the cluster, with what sbatch is asked for an instance of each type."""
        settings = experiment.cloud
        request = {
            machine.name: {
                "options": _options(settings, kind, machine),
                "limit_seconds": kind.limit_seconds,
                "counted": not kind.node_gpus,
            }
            for kind, machine in _kinds(settings)
        }
        logs = str(home / "slurm" / settings.region)  # each cluster counts its jobs from 1
        return Cloud(_endpoint(settings.region), {"kinds": request, "logs": logs}, {})

    def clouds_in_use(self, home: Path, regions: Collection[str], asked: str | None) -> list[Cloud]:
        """Return the cluster of this machine, if runs used it and it answers."""
        if not regions and asked is None:
            return []
        try:
            here = nodes.cluster_name()
        except UsageError:
            return []
        return [Cloud(_endpoint(here), {}, {})] if here in {*regions, asked} else []

    def calls(self, endpoint: Endpoint) -> SlurmCalls:
        return SlurmCalls()

    def launch_request(self, launch: Launch, user_data: str) -> Mapping[str, object]:
        """Return the type and the script; jobs have no markets and no zones."""
        return {"instance_type": launch.instance_type, "script": user_data}

    def preflight(
        self, experiment: Experiment, head: HeadOffer | None, offers: Sequence[Offer] = ()
    ) -> Preflight:
        """Return what sbatch says against a job of each type; nothing is queued."""
        _, problems = self._foretold(experiment)
        return Preflight(tuple(problems))

    def waits(self, experiment: Experiment) -> Mapping[str, float]:
        """Return how long Slurm expects a job of each type to wait in its queue."""
        starts, _ = self._foretold(experiment)
        return {name: max(0.0, start - unix_time()) for name, start in starts.items()}

    def _foretold(self, experiment: Experiment) -> tuple[dict[str, float], list[str]]:
        """Return when a job of each type would start, and what sbatch says against the others.

        A job asks for the time until the deadline: one that takes longer may start later, or never.
        """
        settings = experiment.cloud
        deadline = experiment.limits.deadline
        starts = {}
        problems = []
        for kind, machine in self._select_kinds(settings):
            options = _options(settings, kind, machine)
            if deadline is not None:
                options = [time_option(min(deadline, kind.limit_seconds)), *options]
            try:
                starts[machine.name] = foretold_start(options)
            except SlurmError as error:
                problems.append(f"{machine.name}: {error}")
        return starts, problems

    def enter(self, endpoint: Endpoint, home: Path, instance: str, words: Sequence[str]) -> int:
        """Run a command as a step of the instance's job, beside its others."""
        command = ["srun", "--overlap", "--quiet", "--ntasks=1", "--mem=0"]
        command.append(f"--jobid={instance.removeprefix('slurm-')}")
        if not words:
            command.append("--pty")
        return run_step([*command, *entering(words or SHELL, f"{INSTANCE_VARIABLE}={instance}")])

    def own_address(self) -> str:
        return nodes.own_address()


def _endpoint(cluster: str) -> Endpoint:
    return Endpoint(cluster, provider="slurm", look_seconds=5.0)


def _kinds(settings: Settings) -> list[tuple[nodes.NodeKind, InstanceType]]:
    """Return the partitions by name that have anything, and what an instance of each is.

    Raises:
        UsageError: none has any, or Slurm doesn't answer.
    """
    kinds = sorted(nodes.kinds().items())
    machines = [(kind, kind.instance(name, settings.slots)) for name, kind in kinds]
    present = [(kind, machine) for kind, machine in machines if machine is not None]
    if not present:
        raise UsageError(
            "cloud.instances: no partition of the cluster has a node with GPUs that is up; for "
            "CPU nodes write how many trials one trains at a time: `slots: 4`"
        )
    return present


def _usd_per_hour(settings: Settings, kind: nodes.NodeKind, machine: InstanceType) -> float:
    """Return the price of an instance: its share of its node's, by type or by partition."""
    gpus = kind.node_gpus or machine.gpus
    of_partition = settings.prices.get(machine.name.partition(":")[0])
    node = settings.usd_per_hour(gpus, settings.prices.get(machine.name, of_partition))
    return node * machine.gpus / gpus


def _options(settings: Settings, kind: nodes.NodeKind, machine: InstanceType) -> list[str]:
    """Return the options of sbatch for an instance, those of `cloud.request` last."""
    own = [
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in settings.request.items()
    ]
    return [*nodes.sbatch_options(kind, machine), *own]


SLURM = Slurm()
