"""Named profiles from published figures: a plan before owning a GPU.

A name says what trains on what: `resnet50-cifar10@v100`. The figures are from papers and public
benchmarks, each with its source and date (docs/profiles.md). They are of their authors' programs,
not of the user's script, so `script_hash` is empty. Figures without a source are assumed, and the
profile's `source` says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from cloudtune.errors import UsageError, allowed_names, quote
from cloudtune.model.catalog import InstanceType
from cloudtune.model.scaling import PUBLISHED, Measurement, Provenance, ScalingProfile
from cloudtune.profiles import ratios
from cloudtune.profiles.csv_table import rows
from cloudtune.profiles.width_scaling import with_wider

# Assumed, because none are published for EC2's GPU instances.
ASSUMED_DELAYS: dict[str, Any] = {
    "launch": Measurement(20.0, 10.0),
    "boot": Measurement(90.0, 30.0),
    "release": Measurement(5.0, 3.0),
}


@dataclass(frozen=True)
class Layout:
    """A measurement at one width: the number of nodes, and the seconds of an epoch."""

    width: float
    nodes: int
    seconds: float


@dataclass(frozen=True)
class Published:
    """The figures of one named profile.

    `machine` is where they were measured, with EC2's name if it was there. `batch` is that of one
    GPU if `per_gpu`, otherwise the total. `spread` is that of one epoch, `error` that of all epochs
    together, both relative.
    """

    name: str
    machine: InstanceType
    layouts: tuple[Layout, ...]
    batch: int
    per_gpu: bool
    restart: Measurement
    spread: float
    error: float
    date: str
    source: str

    def profile(self, machine: InstanceType) -> ScalingProfile:
        """Return the profile on a machine with this GPU, with measured and wider widths."""
        # Times over several nodes are never guessed.
        epoch = {
            one.width: Measurement(one.seconds, one.seconds * self.spread)
            for one in self.layouts
            if (one.nodes == 1 and one.width <= machine.gpus)
            or (one.nodes > 1 and self.machine.gpus == machine.gpus)
        }
        epoch = with_wider(epoch, self.machine.gpus, machine.gpus)
        delays = ", ".join(f"{name} {m.mean:g} ± {m.sd:g} s" for name, m in ASSUMED_DELAYS.items())
        batch = f"a batch of {self.batch}" + (" on each GPU" if self.per_gpu else "")
        figures = f"published figures of {self.machine.name}, {batch}: {self.source}"
        return ScalingProfile(
            instance_type=machine.name,
            epoch=epoch,
            start=self.restart,
            resize=self.restart,
            **ASSUMED_DELAYS,
            script_hash="",
            measured_at=self.date,
            source=f"{figures}; assumed: {delays}",
            error=self.error,
            provenance=Provenance(PUBLISHED, on=self.machine.name),
        )


def names() -> tuple[str, ...]:
    """Return the names of the bundled profiles."""
    return tuple(_table())


def published_figures(name: str) -> Published:
    """Return the figures of a bundled profile.

    Raises:
        UsageError: there is no such profile.
    """
    row = _table().get(name)
    if row is None:
        listed = allowed_names(name, names())
        raise UsageError(f"no file and no bundled profile is called {quote(name)}; {listed}")
    return row


def find(name: str, machine: InstanceType) -> ScalingProfile | None:
    """Return a bundled profile for an instance type; None if its GPU can't be compared.

    For another GPU than the named one, it is the same workload's published profile for that GPU, or
    else derived; `gpu_error` is the uncertainty of that.

    Raises:
        UsageError: there is no such profile.
    """
    named = published_figures(name)
    workload = named.name.partition("@")[0]
    figures = _table().get(f"{workload}@{machine.gpu_model}", named)
    if machine.gpus < 1:
        return None
    if machine.gpu_model != figures.machine.gpu:
        return ratios.derive(figures.profile(figures.machine), figures.machine, machine)
    profile = figures.profile(machine)
    if machine.name == figures.machine.name:
        return profile
    return replace(profile, gpu_error=ratios.SAME_GPU_SPREAD)


def load(name: str, machine: InstanceType) -> ScalingProfile:
    """Return a bundled profile for an instance type, derived if it is of another GPU.

    Raises:
        UsageError: there is no such profile, or this GPU is unknown.
    """
    profile = find(name, machine)
    if profile is None:
        gpus = ", ".join(sorted(ratios.gpu_speeds().logs))
        raise UsageError(
            f"--profile {name}: nothing is published that compares {machine.name} ({machine.gpu}) "
            f"with it; take instances with one of {gpus}, or measure with `cloudtune profile`"
        )
    return profile


@cache
def _table() -> dict[str, Published]:
    return {row["profile"]: _parse_row(row) for row in rows("published.csv")}


def _parse_row(row: Mapping[str, str]) -> Published:
    machine = InstanceType(
        row["measured_on"], int(row["node_gpus"]), row["gpu"], int(row["gpu_memory_mib"]), 0, 0
    )
    layouts = []
    for width in rows("published_widths.csv"):
        if width["profile"] == row["profile"]:
            passes = float(row["epoch_samples"]) / float(width["samples"])
            seconds = passes * float(width["seconds"])
            layouts.append(Layout(float(width["width"]), int(width["nodes"]), seconds))
    return Published(
        name=row["profile"],
        machine=machine,
        layouts=tuple(layouts),
        batch=int(row["batch"]),
        per_gpu=row["batch_of"] == "gpu",
        restart=Measurement(float(row["restart"]), float(row["restart_sd"])),
        spread=float(row["spread"]),
        error=float(row["error"]),
        date=row["date"],
        source=row["source"],
    )
