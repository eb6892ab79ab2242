"""What a plan leaves of the limits, so that they don't stop the run that follows it."""

from dataclasses import dataclass, replace

from cloudtune.model.plans import Limits, Rentable

# The share of the remaining deadline and budget that a plan leaves for surprises.
MARGIN = 0.05

# Differences from the expectation below this share are noise.
NOISE = 0.05


@dataclass(frozen=True)
class Reserve:
    """What a plan leaves of the limits.

    A run winds down `seconds` before its deadline, and while its budget pays for returning
    everything in that time. `share` of the rest is for surprises.
    """

    seconds: float
    share: float = MARGIN

    @property
    def tight(self) -> "Reserve":
        """What continuing with a plan, and a best-effort plan, must leave of the limits."""
        return replace(self, share=self.share / 2)

    def limits(self, limits: Limits) -> Limits:
        deadline = limits.deadline
        budget = limits.budget
        return Limits(
            None if deadline is None else max(0.0, deadline) * (1 - self.share),
            None if budget is None else max(0.0, budget) * (1 - self.share),
        )

    def returned_late(self, rentable: Rentable) -> Rentable:
        """Return an offer whose instances take at least `seconds` to be returned.

        Every instance is returned at some point, so a plan's price then covers, at each moment, the
        bill if everything were returned that late.
        """
        profile = rentable.profile
        if profile.release.mean >= self.seconds:
            return rentable
        release = replace(profile.release, mean=self.seconds)
        return replace(rentable, profile=replace(profile, release=release))


def in_wished_time(limits: Limits, seconds: float) -> Limits:
    """Return limits that also keep the remaining `seconds` of the time a plan was chosen for."""
    soon = max(0.0, seconds)
    return replace(limits, deadline=soon if limits.deadline is None else min(soon, limits.deadline))
