"""How much faster a trial is on more GPUs of one machine, where nobody has measured it.

The logarithm of the speed-up at 2, 4 and 8 GPUs is the mean of the rows of width_scaling.csv by
their number of programs, and its spread is that of the programs and of the rows around the mean.
Between these widths both are interpolated by the logarithm of the width, and beyond the last two
they go on as between them. So nothing is known of a script's own batch or model here.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from functools import cache
from statistics import fmean

from cloudtune.model.scaling import Measurement
from cloudtune.model.trial import Width
from cloudtune.profiles.csv_table import rows
from cloudtune.profiles.measurements import widths_to_measure


def with_wider(
    epoch: Mapping[Width, Measurement], measured_gpus: int, gpus: int
) -> dict[Width, Measurement]:
    """Return the seconds of an epoch with those at predicted widths, up to all `gpus` of a machine.

    Predicted widths have no measurements (`n` is 0), and their error. None is predicted unless all
    GPUs of the measured machine were used together: whether a script can use more is known by that.
    """
    widest = float(measured_gpus)
    if widest not in epoch or gpus <= measured_gpus:
        return dict(epoch)
    seconds = epoch[widest]
    wider = {
        width: _predict(seconds, widest, width)
        for width in widths_to_measure(gpus)
        if width > widest and width not in epoch
    }
    return {width: {**epoch, **wider}[width] for width in sorted({*epoch, *wider})}


def _predict(seconds: Measurement, measured: Width, width: Width) -> Measurement:
    faster, error = _speedup(width)
    known_faster, known_error = _speedup(measured)
    scaled = seconds.scale(known_faster / faster)
    further = math.sqrt(max(0.0, error**2 - known_error**2))
    return Measurement(scaled.mean, scaled.sd, 0, math.hypot(scaled.error, further * scaled.mean))


def _speedup(width: Width) -> tuple[float, float]:
    """Return the speed-up on so many GPUs against one, and its spread."""
    at = math.log2(width)
    known = _curve()
    above = min(bisect_right([point[0] for point in known], at), len(known) - 1)
    left, right = known[above - 1], known[above]
    share = (at - left[0]) / (right[0] - left[0])
    log = left[1] + share * (right[1] - left[1])
    return math.exp(log), left[2] + share * (right[2] - left[2])


@cache
def _curve() -> tuple[tuple[float, float, float], ...]:
    """Return doublings, the logarithm of the speed-up, and its spread, from one GPU on."""
    points = [(0.0, 0.0, 0.0)]
    published = rows("width_scaling.csv")
    for width in sorted({int(row["width"]) for row in published}):
        here = [row for row in published if int(row["width"]) == width]
        weights = [int(row["n"]) for row in here]
        logs = [math.log(float(row["speedup"])) for row in here]
        log = fmean(logs, weights)
        variances = [
            float(row["spread"]) ** 2 + (own - log) ** 2
            for row, own in zip(here, logs, strict=True)
        ]
        variance = fmean(variances, weights)
        points.append((math.log2(width), log, math.sqrt(variance)))
    return tuple(points)
