"""What is said beside times and prices: whether they were measured, and where and when, or not.

The figures of a plan, a run and a report all rest on profiles, so this is all that any screen says
of them. `Provenance` in `scaling` is what is kept: in profiles, saved plans and ledgers.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cloudtune.model.scaling import EMULATED, MEASURED, PUBLISHED, ScalingProfile, Seen
from cloudtune.model.text import ago_text, counted
from cloudtune.profiles.store import age

_DERIVED = "derived"
# A source with at least this part in a figure is named as its only one.
_ALL = 0.995
# This many different origins, or more, are named by their kinds.
_SEVERAL = 3


@dataclass(frozen=True)
class Basis:
    """What the seconds of several profiles rest on together, and with them all dollars.

    `kinds` are those that occur, "derived" among them, in the order of how little they say of a
    real run. `text` is what stands beside figures: "emulated", "measured 3 days ago on g5.xlarge".
    `measured` is whether every figure was measured on the very machines that are rented.
    """

    text: str
    kinds: tuple[str, ...]

    @property
    def measured(self) -> bool:
        """Whether everything was measured on the machines that it is of."""
        return self.kinds == (MEASURED,)

    @property
    def own(self) -> bool:
        """Whether nothing is of another program or another type."""
        return not {PUBLISHED, _DERIVED}.intersection(self.kinds)

    @property
    def emulated(self) -> bool:
        """Whether some of it was made up by the emulated cloud."""
        return EMULATED in self.kinds


def origin_text(profile: ScalingProfile, today: str) -> str:
    """Return where a profile comes from, as it stands beside a figure; `today` as 2026-11-21.

    Only the runs, where all figures are from earlier runs.
    """
    runs = _runs(profile, today)
    if runs and math.fsum(run.share for run in profile.seen) > _ALL:
        return f"{runs} on {profile.derived_from or profile.instance_type}"
    return ", ".join(filter(None, (_source(profile, today), runs)))


def seen_text(seen: Seen, where: str, today: str) -> str:
    """Return what an earlier run adds to a profile on an instance type, in a line."""
    days = age(seen.at, today)
    when = "" if days is None else f", {ago_text(days)}"
    counts = (seen.epochs, seen.trials, seen.instances)
    counted_text = ", ".join(map(counted, counts, ("epoch", "trial", "boot")))
    part = (
        f"{100 * seen.share:.0f} % of the seconds of an epoch" if seen.share else "its delays alone"
    )
    return f"seen in {seen.run}: {counted_text} on {where}{when}; counts for {part}"


def _runs(profile: ScalingProfile, today: str) -> str:
    """Return which earlier runs a profile's figures are of, "" where there are none."""
    if not profile.seen:
        return ""
    days = age(profile.seen[0].at, today)
    when = "" if days is None else ago_text(days)
    if len(profile.seen) == 1:
        return f"seen in {profile.seen[0].run} {when}".rstrip()
    return f"seen in {len(profile.seen)} runs, the last {when}"


def _source(profile: ScalingProfile, today: str) -> str:
    origin = profile.provenance.origin
    source = profile.derived_from
    if origin == EMULATED:
        return f"emulated, derived from {source}" if source else "emulated"
    days = age(profile.measured_at, today)
    when = "" if days is None else f" {ago_text(days)}"
    if origin == PUBLISHED:
        return f"published{when} for {source or profile.instance_type}"
    if source:
        return f"derived from {source}, measured{when}"
    return f"measured{when} on {profile.instance_type}"


def basis(profiles: Iterable[ScalingProfile], today: str, *, paced: bool = False) -> Basis:
    """Return what is said of figures that rest on all these profiles.

    Where training is `paced`, figures are emulated even if the pace follows what was measured.
    """
    used = list(profiles)
    texts = list(dict.fromkeys(origin_text(profile, today) for profile in used))
    present: set[str] = {profile.provenance.origin for profile in used}
    present |= {_DERIVED for profile in used if profile.derived_from}
    kinds = tuple(k for k in (EMULATED, PUBLISHED, _DERIVED, MEASURED) if k in present)
    text = "; ".join(texts if len(texts) < _SEVERAL else kinds)
    if paced and EMULATED not in kinds:
        return Basis(f"emulated by figures {text}", (EMULATED, *kinds))
    return Basis(text or "unknown", kinds)
