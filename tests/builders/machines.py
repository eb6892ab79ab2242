"""Machines that may be rented, and how a script scales on them."""

from collections.abc import Mapping

from cloudtune.model.catalog import InstanceType, Market, Offer
from cloudtune.model.plans import Charges, Limits
from cloudtune.model.scaling import Measurement, ScalingProfile

NO_LIMITS = Limits()
NO_CHARGES = Charges()


def offer(
    gpus: int = 4,
    usd_per_hour: float = 36.0,
    minimum_seconds: float = 60.0,
    *,
    name: str = "g.4x",
    market: Market = "on-demand",
    zone: str = "",
    interruptions_per_hour: float = 0.0,
) -> Offer:
    """Return an offer; at its $36 an hour, a second of an instance costs a cent."""
    return Offer(
        InstanceType(name, gpus, "T4", 16384, 16, 65536),
        market,
        "us-east-1",
        usd_per_hour,
        minimum_seconds,
        zone=zone,
        interruptions_per_hour=interruptions_per_hour,
    )


def profile(
    epoch: Mapping[float, float],
    *,
    launch: float = 1.0,
    boot: float = 20.0,
    start: float = 4.0,
    resize: float = 6.0,
    release: float = 2.0,
    spread: float = 0.0,
    name: str = "g.4x",
    error: float = 0.0,
) -> ScalingProfile:
    """Return a profile; each duration's deviation is `spread` of its mean."""

    def measured(seconds: float) -> Measurement:
        return Measurement(seconds, seconds * spread, 3)

    return ScalingProfile(
        instance_type=name,
        epoch={width: measured(seconds) for width, seconds in epoch.items()},
        launch=measured(launch),
        boot=measured(boot),
        start=measured(start),
        resize=measured(resize),
        release=measured(release),
        script_hash="abc",
        measured_at="2026-01-01",
        source="made up",
        error=error,
    )


LINEAR = {1.0: 8.0, 2.0: 4.0, 4.0: 2.0}
SUBLINEAR = {1.0: 8.0, 2.0: 5.0, 4.0: 4.0}
NODE_BOUNDARY = {1.0: 8.0, 2.0: 4.7, 4.0: 2.5, 8.0: 3.8}
"""CIFAR-10 at a batch of 512, roughly: 8 GPUs over two nodes are slower than 4 on one."""
