"""The origin of times and prices in words: whether they were measured, where and when.

The figures of plans, runs and reports are all based on profiles, and every screen describes them
with these texts. Profiles, saved plans and ledgers store `Provenance` (model/scaling.py).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cloudtune.model.scaling import ASSUMED, EMULATED, MEASURED, PUBLISHED, ScalingProfile, Seen
from cloudtune.model.text import ago_text, count_noun
from cloudtune.profiles.store import age

_DERIVED = "derived"
# A source with at least this share in a figure is named as its only one.
_ALL = 0.995
# From this many different origins on, only their kinds are named.
_SEVERAL = 3


@dataclass(frozen=True)
class Basis:
    """The common basis of several profiles' seconds, and so of all dollars.

    `kinds` are those that occur, including "derived", from the least to the most reliable for a
    real run. `text` is shown with figures: "emulated", "measured 3 days ago on g5.xlarge".
    `measured` is whether every figure was measured on the machines that are rented.
    """

    text: str
    kinds: tuple[str, ...]

    @property
    def measured(self) -> bool:
        """Whether everything was measured on its own machines."""
        return self.kinds == (MEASURED,)

    @property
    def own(self) -> bool:
        """Whether nothing is assumed, or comes from another program or another type."""
        return not {ASSUMED, PUBLISHED, _DERIVED}.intersection(self.kinds)

    @property
    def emulated(self) -> bool:
        """Whether some of it comes from the emulated cloud."""
        return EMULATED in self.kinds


def origin_text(profile: ScalingProfile, today: str) -> str:
    """Return a profile's origin, as shown with a figure; `today` as in 2026-11-21.

    Only the runs, if all figures are from earlier runs.
    """
    runs = _runs(profile, today)
    if runs and math.fsum(run.share for run in profile.seen) > _ALL:
        return f"{runs} on {profile.derived_from or profile.instance_type}"
    return ", ".join(filter(None, (_source(profile, today), runs)))


def seen_text(seen: Seen, where: str, today: str) -> str:
    """Return what an earlier run contributes to a profile on an instance type, in a line."""
    days = age(seen.at, today)
    when = "" if days is None else f", {ago_text(days)}"
    counts = (seen.epochs, seen.trials, seen.instances)
    counted_text = ", ".join(map(count_noun, counts, ("epoch", "trial", "boot")))
    part = (
        f"{100 * seen.share:.0f} % of the seconds of an epoch" if seen.share else "its delays alone"
    )
    return f"seen in {seen.run}: {counted_text} on {where}{when}; counts for {part}"


def _runs(profile: ScalingProfile, today: str) -> str:
    """Return the earlier runs in a profile's figures; "" if there are none."""
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
    if origin == ASSUMED:
        return f"never measured: {profile.provenance.why}"
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
    """Return the basis of figures that depend on all these profiles.

    If training is `paced`, figures are emulated even if the pace follows measurements.
    """
    used = list(profiles)
    texts = list(dict.fromkeys(origin_text(profile, today) for profile in used))
    present: set[str] = {profile.provenance.origin for profile in used}
    present |= {_DERIVED for profile in used if profile.derived_from}
    kinds = tuple(k for k in (EMULATED, ASSUMED, PUBLISHED, _DERIVED, MEASURED) if k in present)
    named = texts if len(texts) < _SEVERAL else kinds
    text = "; ".join(named)
    if paced and EMULATED not in kinds:
        return Basis(f"emulated by figures {text}", (EMULATED, *kinds))
    return Basis(text or "unknown", kinds)
