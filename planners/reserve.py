"""What a plan leaves of the limits, so that they don't stop the run that follows it."""

from dataclasses import dataclass, replace

from cloudtune.model.plans import Allowance, Remaining, Rentable

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

    def allowance(self, remaining: Remaining) -> Allowance:
        """Return what a plan may use of what remains."""
        seconds = remaining.seconds
        dollars = remaining.dollars
        return Allowance(
            None if seconds is None else max(0.0, seconds) * (1 - self.share),
            None if dollars is None else max(0.0, dollars) * (1 - self.share),
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


def in_wished_time(limit: float | None, seconds: float) -> float:
    """Return a limit that also keeps the remaining `seconds` of the time a plan was chosen for."""
    soon = max(0.0, seconds)
    return soon if limit is None else min(soon, limit)
