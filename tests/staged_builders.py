"""Plays staged runs by their names: small jobs, with worlds that differ from what was planned."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cloudtune.bookkeeping import Brakes, Metric
from cloudtune.commands import Launch, StartTrial
from cloudtune.engine import run
from cloudtune.events import InstanceGone, InstanceLaunched
from cloudtune.job import drain_seconds
from cloudtune.ledger import MemoryLedger
from cloudtune.plan import Limits, Rentable
from cloudtune.simulator import SimWorld, synthetic_metric
from cloudtune.staged import staged_policy
from cloudtune.tactics import Setup
from cloudtune.trial import Trial
from tests.builders import NO_CHARGES, SUBLINEAR, offer, profile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.events import Event
    from cloudtune.ledger import Entry
    from cloudtune.plan import Charges, Plan
    from cloudtune.policy import RunPolicy


@dataclass(frozen=True)
class Deal:
    """All that a staged run is made from, and the world it meets; a plan doesn't know of `pace`."""

    name: str = "seer-barrier"
    trials: int = 16
    first_trials: int | None = None
    min_epochs: int = 1
    max_epochs: int = 8
    eta: int = 2
    limits: Limits = field(default_factory=lambda: Limits(600.0, 6.0))
    rentables: tuple[Rentable, ...] = field(
        default_factory=lambda: (Rentable(offer(), profile(SUBLINEAR), 8),)
    )
    max_instances: int = 8
    charges: Charges = NO_CHARGES
    caps: Mapping[int, int] = field(default_factory=dict)
    seed: int = 0
    brakes: Brakes | None = None
    pace: Callable[[Mapping[str, object], int], float] | None = None
    real: tuple[Rentable, ...] | None = None
    trouble: Sequence[Event] = ()
    heartbeat: bool = False

    def but(self, **changes: object) -> Deal:
        """Return the deal with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def policy(self) -> RunPolicy:
        """Return a fresh policy."""
        setup = Setup(
            rentables=self.rentables,
            max_instances=self.max_instances,
            limits=self.limits,
            mode="max",
            min_epochs=self.min_epochs,
            max_epochs=self.max_epochs,
            eta=self.eta,
        )
        trials = [Trial(f"t{n:02d}", {"x": n}, self.caps.get(n)) for n in range(self.trials)]
        drain = drain_seconds(*(each.profile for each in self.rentables))
        return staged_policy(
            self.name,
            setup,
            trials,
            Metric("score", "max"),
            self.brakes or Brakes(drain=drain),
            first_trials=self.first_trials,
            charges=self.charges,
            heartbeat=self.heartbeat,
        )

    def play(self, policy: RunPolicy | None = None) -> Show:
        """Simulate the run to its end."""
        policy, ledger = policy or self.policy(), MemoryLedger()
        curves = synthetic_metric("max", self.seed)
        world = SimWorld(self.real or self.rentables, "score", curves, self.seed, self.pace)
        for event in self.trouble:
            world.schedule(event)
        run(policy, world, ledger)
        return Show(self, policy, tuple(ledger.entries))


@dataclass(frozen=True)
class Show:
    """A staged run that has ended."""

    deal: Deal
    policy: RunPolicy
    entries: tuple[Entry, ...]

    @property
    def epochs(self) -> int:
        """How far the trial that came furthest was trained."""
        return max(max(t.history, default=0) for t in self.policy.trials.values())

    @property
    def members(self) -> list[int]:
        """How many trials each stage had, by the plan that was followed in the end."""
        return [stage.stage.trials for stage in self.policy.plan.stages]

    def bill(self) -> tuple[float, float]:
        """Return when the last instance was gone and what all cost, by the cloud's word alone."""
        offers, charges = self._offers(), self.deal.charges
        begins: dict[str, float] = {}
        seconds = dollars = 0.0
        for event in (entry.event for entry in self.entries):
            if isinstance(event, InstanceLaunched):
                begins[event.intent] = event.launched_at
                dollars += charges.usd_per_launch
            elif isinstance(event, InstanceGone) and event.intent in begins:
                seconds = max(seconds, event.gone_at)
                lived = event.gone_at - begins.pop(event.intent)
                dollars += offers[event.intent].charge(lived)
        assert not begins, f"never given back: {begins}"
        return seconds, dollars + seconds * charges.usd_per_second

    def _offers(self) -> dict[str, Offer]:
        """Return what was asked for, by intent."""
        known = {each.offer.instance_type.name: each.offer for each in self.deal.rentables}
        commands = (c for entry in self.entries for c in entry.commands)
        return {c.intent: known[c.instance_type] for c in commands if isinstance(c, Launch)}

    def widths(self) -> list[float]:
        """Return the width of each session that was started, in order."""
        commands = (c for entry in self.entries for c in entry.commands)
        return [c.width for c in commands if isinstance(c, StartTrial)]


def widths(plan: Plan) -> list[float]:
    """Return the width of each stage of a plan."""
    return [group.width for stage in plan.stages for group in stage.groups]
