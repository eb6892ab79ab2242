"""How many trials to pack on a GPU, from the times of one and two on it (`--pack auto`); pure.

    t(k) = t1 (1 + (k - 1) s),   s = t2 / t1 - 1

seconds for an epoch of each of k trials. This is Amdahl's law (1967) for the throughput
k t1 / t(k), where s is the part of an epoch in which a trial needs the GPU to itself. Predicting
from the memory of two trials how many fit is Hydro's idea (OSDI'23).

The error is from our own measurements (docs/mps.md): eight trials on an H200, predicted from two,
for three models, with MPS and time slicing, took 0.65 to 1.9 times as long, with a root mean square
of 34 % for two doublings. So nothing is predicted beyond eight.
"""

import math
from dataclasses import replace

from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.model.text import width_text
from cloudtune.profiles.measurements import packed_widths

# The maximum number of trials in a prediction.
_MOST = 8
# Relative error of a prediction, for each doubling beyond two.
_OFF = 0.17
# A smaller gain isn't worth it, however well it was measured: trials on one GPU share failures.
_NOISE = 0.05


def pack_shares(profile: ScalingProfile, gpu_memory_mib: float) -> tuple[ScalingProfile, str]:
    """Return a profile with the shares of a GPU that are worth it, and a sentence about them.

    The profile has one and two trials on a GPU; if two failed, it stays unchanged. Narrower shares
    are predicted (`n` is 0), down to the last that fits into the memory and gains more than noise.
    None is predicted if a GPU has memory and a trial's need is unknown.
    """
    one = profile.epoch.get(1.0)
    two = profile.epoch.get(0.5)
    if one is None or two is None:
        return profile, ""
    takes = f"two trials on a GPU take {two.mean / one.mean:.2f} times as long as one"
    noise = max(_NOISE, 2 * math.hypot(_unsure(one), _unsure(two)))
    if 2 * one.mean / two.mean <= 1 + noise:
        return profile.only([w for w in profile.widths if w >= 1]), f"{takes}: none share a GPU"
    known = gpu_memory_mib <= 0 or profile.worker_memory(0.5) is not None
    fitting = [k for k in range(3, _MOST + 1) if known and profile.fits(1 / k, gpu_memory_mib)]
    epoch = dict(profile.epoch)
    last = 2
    for share in packed_widths(max(fitting, default=2))[1:]:
        count = round(1 / share)
        seconds = _predict(one, two, count)
        gain = count / last * epoch[1 / last].mean / seconds.mean
        if gain <= 1 + math.hypot(noise, _OFF * math.log2(count / last)):
            break
        epoch[share] = seconds
        last = count
    shares = ", ".join(width_text(1 / k) for k in range(3, last + 1) if 1 / k in epoch)
    predicted = f"; {shares} of a GPU predicted, not measured" if shares else ""
    limit = "" if known else ", as the memory that each needs is unknown"
    note = f"{takes}: up to {last} share a GPU{limit}{predicted}"
    return replace(profile, epoch={w: epoch[w] for w in sorted(epoch)}), note


def _predict(one: Measurement, two: Measurement, count: int) -> Measurement:
    """Return the seconds of an epoch of each of `count` trials on a GPU."""
    slowdown = min(1.0, max(0.0, two.mean / one.mean - 1))
    times = 1 + (count - 1) * slowdown
    unsure = (count - 1) * (1 + slowdown) / times * math.hypot(_unsure(one), _unsure(two))
    error = math.hypot(unsure, _OFF * math.log2(count / 2))
    mean = times * one.mean
    return Measurement(mean, two.sd / two.mean * mean, 0, error * mean)


def _unsure(seconds: Measurement) -> float:
    """Return the relative standard error of a mean."""
    return seconds.sd / seconds.mean / math.sqrt(max(1, seconds.n))
