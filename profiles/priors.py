"""Priors of a profile: spreads that a few measurements can't show, from a table.

One measurement says nothing about its spread, and many in one run nothing about the next run. So a
forecast uses the spreads of priors.csv: those from run to run unchanged (`Measurement.error`,
`ScalingProfile.error`), those within a run combined with the measured ones, as if the prior were
four measurements.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from cloudtune.model.scaling import ASSUMED, DELAYS, Measurement, ScalingProfile
from cloudtune.model.text import gpus_text
from cloudtune.profiles.csv_table import rows

# The table's spread within a run counts as that of this many measurements.
_WEIGHT = 4
# The remaining share of the variance between configurations: about four trials set a run's length.
_SHARE = 0.25


@dataclass(frozen=True)
class Prior:
    """A row of the table; relative standard deviations, and the least one in seconds."""

    between: float
    within: float
    floor: float
    date: str
    source: str


@cache
def prior(what: str, where: str) -> Prior:
    """Return the prior of a duration at a provider; or the general one if it isn't in the table."""
    by_place = {row["where"]: row for row in rows("priors.csv") if row["what"] == what}
    row = by_place.get(where, by_place[""])
    between, within, floor = (float(row[name]) for name in ("between", "within", "floor"))
    return Prior(between, within, floor, row["date"], row["source"])


def add_spreads(profile: ScalingProfile, where: str) -> ScalingProfile:
    """Return a profile with the spreads of its figures at a provider, measured and prior.

    The means don't change. `assumed` says which spreads come from the table; a profile that already
    has them is returned unchanged.
    """
    if profile.assumed:
        return profile
    by_epoch = prior("epoch", where)
    epoch = {width: _within(m, by_epoch) for width, m in profile.epoch.items()}
    # How far the speeds of all trials of a run may be off together (relative).
    configurations = prior("speed of other configurations", where).between
    machines = prior("speed of other machines", where).between
    many = math.sqrt(1 / max(1, profile.configurations) + _SHARE)
    speed = math.hypot(configurations * many, machines)
    return replace(
        profile.with_delays(lambda name, measured: _delay(measured, prior(name, where))),
        epoch=epoch,
        error=math.hypot(profile.error, speed),
        assumed=tuple(_assumption_texts(profile, where, speed)),
    )


def _delay(measured: Measurement, assumed: Prior) -> Measurement:
    """Return a delay with its spread within a run, and the error of its mean in another.

    If the measurement has such an error, several runs have shown it.
    """
    within = _within(measured, assumed)
    if measured.error > 0:
        return within
    between = max(assumed.between * measured.mean, assumed.floor) if measured.mean > 0 else 0.0
    error = math.hypot(between, within.sd / math.sqrt(max(1, measured.n)))
    return replace(within, error=error)


def _within(measured: Measurement, prior_spread: Prior) -> Measurement:
    """Return a duration with its spread within a run: measured and prior, weighted by counts.

    The spread exceeds the measured one only if there are few measurements.
    """
    own = max(0, measured.n - 1)
    if own == 0 and measured.sd > 0:  # published figures without a count
        return measured
    assumed = prior_spread.within * measured.mean
    variance = (_WEIGHT * assumed**2 + own * measured.sd**2) / (_WEIGHT + own)
    return replace(measured, sd=math.sqrt(variance))


def _assumption_texts(profile: ScalingProfile, where: str, speed: float) -> Iterable[str]:
    count = profile.configurations
    were = "1 configuration was" if count == 1 else f"{count} configurations were"
    how = "measured or seen in earlier runs" if profile.seen else "measured, on one machine"
    error = f" and ± {profile.speed_error:.0%} as derived" if profile.speed_error else ""
    if profile.provenance.origin == ASSUMED and not profile.seen:
        yield f"speed off by a factor of {math.exp(profile.speed_error):.1f} either way: assumed"
    else:
        yield f"speed ± {speed:.0%} for all trials alike ({were} {how}){error}"
    for width, seconds in sorted(profile.epoch.items(), reverse=True):
        if seconds.error and not seconds.n:
            off = f"± {seconds.error / seconds.mean:.0%}"
            how = "published scaling" if width > 1 else "one and two"
            yield f"epochs on {gpus_text(width)} {off}: predicted from {how}, not measured"
    offs = {name: _delay(getattr(profile, name), prior(name, where)).error for name in DELAYS}
    delays = ", ".join(f"{name} ± {seconds:.1f} s" for name, seconds in offs.items())
    yield f"{delays} from run to run"
