"""The profile of a script that was never measured, on any instance type.

One epoch is assumed to take some time on one V100, off by a wide factor that is the same for all
machines. Other GPUs and widths follow published speeds (gpu_speeds.py, width_scaling.py), and the
delays what is known of other programs.
"""

import math
from collections.abc import Mapping
from typing import Any

from cloudtune.model.catalog import InstanceType
from cloudtune.model.scaling import ASSUMED, DELAYS, Measurement, Provenance, ScalingProfile
from cloudtune.model.units import format_seconds
from cloudtune.profiles import ratios
from cloudtune.profiles.bundled import ASSUMED_DELAYS
from cloudtune.profiles.gpu_speeds import Ratio
from cloudtune.profiles.width_scaling import with_wider

# The GPU whose epoch is assumed.
REFERENCE = "v100"
# A restart of a program that isn't known takes 30 s, and those of five models 15 to 250 s:
# siasosp23/artifacts @aaf7a0d (2023-10-23).
_START = Measurement(30.0, 0.0, 0, 25.0)


def prior_profile(
    machine: InstanceType,
    *,
    epoch_seconds: float,
    error: float,
    delays: Mapping[str, Measurement] | None = None,
) -> ScalingProfile:
    """Return the assumed profile of a script on an instance type.

    `epoch_seconds` is the expected time of one epoch on one V100, and `error` how far it may be off
    on all machines together, as a standard deviation of the logarithm. `delays` replace those that
    are assumed, by the names of `DELAYS`. `script_hash` is empty.

    Its `gpu_error` is the GPU's own. A GPU that no table has counts as the reference, and may be
    any of the table.

    Raises:
        ValueError: the type doesn't have a whole GPU, or the epoch takes no time.
    """
    if machine.gpus < 1 or epoch_seconds <= 0:
        raise ValueError(f"{machine.name}: {machine.gpus} GPUs, {epoch_seconds:g} s an epoch")
    ratio = ratios.between(REFERENCE, machine.gpu)
    if ratio is None:
        spread = ratios.gpu_speeds().spread_of_all
        ratio = Ratio(1.0, spread, 0, "", f"no table has a {machine.gpu}, so it may be any GPU")
        own = spread
    else:
        own = ratios.gpu_speeds().own_errors[machine.gpu_model]
    one = Measurement(epoch_seconds / ratio.ratio, n=0)
    known: dict[str, Any] = {**_delays(), **(delays or {})}
    faster = f"{machine.gpu} {ratio.ratio:.2f} times as fast as {REFERENCE}"
    seconds = ", ".join(f"{name} {known[name].mean:g} s" for name in DELAYS)
    return ScalingProfile(
        instance_type=machine.name,
        epoch=with_wider({1.0: one}, 1, machine.gpus),
        **known,
        script_hash="",
        measured_at="",
        source=f"{faster} ±{ratio.spread:.0%} ({ratio.source}); assumed: {seconds}",
        error=error,
        gpu_error=own,
        provenance=Provenance(
            ASSUMED,
            why=(
                f"an epoch is assumed to take {format_seconds(epoch_seconds)} on a V100, off by a "
                f"factor of {math.exp(error):.1f} either way; GPUs by published ratios"
            ),
        ),
    )


def _delays() -> dict[str, Measurement]:
    """Return the delays around training, with how far they may be off in a run."""
    machine = {
        name: Measurement(assumed.mean, 0.0, 0, assumed.sd)
        for name, assumed in ASSUMED_DELAYS.items()
    }
    return {**machine, "start": _START, "resize": _START}
