"""What a plan leaves of the limits, so that a run which goes by it is not stopped by them."""

from dataclasses import dataclass, replace

from cloudtune.model.plans import Limits, Rentable

# The share of what is left of deadline and budget that a plan leaves for what it can't foresee.
MARGIN = 0.05

# The share by which figures must differ from what was expected to say anything.
NOISE = 0.05


@dataclass(frozen=True)
class Reserve:
    """What a plan leaves of the limits.

    A run begins to give back `seconds` before its deadline, and it ends while its budget pays for
    returning everything in that time; `share` of what is left is for surprises besides.
    """

    seconds: float
    share: float = MARGIN

    @property
    def tight(self) -> "Reserve":
        """What going on with a plan must leave of the limits, and a plan in need."""
        return replace(self, share=self.share / 2)

    def limits(self, limits: Limits) -> Limits:
        deadline = limits.deadline
        budget = limits.budget
        return Limits(
            None if deadline is None else max(0.0, deadline) * (1 - self.share),
            None if budget is None else max(0.0, budget) * (1 - self.share),
        )

    def returned_late(self, rentable: Rentable) -> Rentable:
        """Return an offer whose instances take at least `seconds` to be given back.

        Every instance is returned some day, so a plan's price is then, at each moment of it, no
        less than the bill if everything were given back that late.
        """
        profile = rentable.profile
        if profile.release.mean >= self.seconds:
            return rentable
        release = replace(profile.release, mean=self.seconds)
        return replace(rentable, profile=replace(profile, release=release))


def in_wished_time(limits: Limits, seconds: float) -> Limits:
    """Return limits that also keep the `seconds` left of the time for which a plan was chosen."""
    soon = max(0.0, seconds)
    return replace(limits, deadline=soon if limits.deadline is None else min(soon, limits.deadline))
