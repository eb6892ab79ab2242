"""The interface of planners: request, plan, and the error when no plan meets the limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from cloudtune.errors import CloudtuneError
from cloudtune.model.catalog import Offer
from cloudtune.model.plans import (
    Allowance,
    Charges,
    Estimate,
    Limits,
    Objective,
    Plan,
    Rentable,
    Stage,
    admits,
)
from cloudtune.model.trial import Width
from cloudtune.model.units import format_dollars, format_gpu_hours, format_seconds


@dataclass(frozen=True)
class Enough:
    """Limits that would do, and what a run takes within them on which machines.

    A limit that wasn't named is None.
    """

    limits: Limits
    estimate: Estimate
    machines: str
    in_gpu_hours: bool = False

    @property
    def text(self) -> str:
        """Return "--deadline 3m20s --budget '$0.83' would do (2m 48s, $0.78 on 4 x g5.xlarge)"."""
        cost = format_gpu_hours if self.in_gpu_hours else format_dollars
        limits = []
        if self.limits.deadline is not None:
            limits.append(f"--deadline {format_seconds(self.limits.deadline).replace(' ', '')}")
        if self.limits.budget is not None and self.in_gpu_hours:
            limits.append(f"limits.gpu_hours: {self.limits.budget:g}")
        elif self.limits.budget is not None:
            limits.append(f"--budget '{format_dollars(self.limits.budget)}'")
        takes = [format_seconds(self.estimate.seconds)]
        if self.estimate.dollars:
            takes.append(cost(self.estimate.dollars))
        return f"{' '.join(limits)} would do ({', '.join(takes)} on {self.machines})"


class InfeasibleError(CloudtuneError):
    """No plan meets the limits.

    `fastest` and `cheapest` are the two ends of what is possible, or None if nothing is; `nearest`
    is the plan that comes closest to both limits, if one was searched for. `enough` has limits that
    would do under the same names, also of a search, which has no plan of stages.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        fastest: Plan | None,
        cheapest: Plan | None,
        nearest: Plan | None = None,
        enough: Mapping[str, Enough] | None = None,
    ) -> None:
        super().__init__(message)
        self.enough = enough or {}
        self.fastest = fastest
        self.cheapest = cheapest
        self.nearest = nearest


@dataclass(frozen=True)
class Live:
    """Instances of one offer that are already rented when a plan begins; `ages` in seconds.

    `width` is the width at which the surviving trials train there now, None before the start.
    """

    offer: Offer
    ages: tuple[float, ...]
    width: Width | None = None


@dataclass(frozen=True)
class PlanRequest:
    """A planning problem: the work, the rentables it may run on, and the limits.

    `max_instances` is for all offers together; `vcpu_quotas` bounds vCPUs by `Offer.quota`. Both
    apply to all instances alive at once. `mix` is how many offers one stage may use.
    """

    work: tuple[Stage, ...]
    rentables: tuple[Rentable, ...]
    allowance: Allowance
    max_instances: int
    fleet: tuple[Live, ...] = ()
    charges: Charges = field(default_factory=Charges)
    objective: Objective = "cost"
    vcpu_quotas: Mapping[str, int] = field(default_factory=dict, hash=False)
    mix: int = 1

    def admits(self, alive: Mapping[Offer, int]) -> bool:
        """Whether these instances, by offer, may be alive at once."""
        return admits(self.max_instances, self.vcpu_quotas, alive)

    def rentable(self, offer: Offer) -> Rentable:
        return self._by_offer[offer]

    @cached_property
    def _by_offer(self) -> Mapping[Offer, Rentable]:
        return {rentable.offer: rentable for rentable in reversed(self.rentables)}


class Planner(Protocol):
    """Decides, before a run and at its barriers, how the rest of a job should run."""

    @property
    def name(self) -> str:
        """The name of the planner on the command line."""

    def plan(self, request: PlanRequest) -> Plan:
        """Return the best plan of its kind that stays within the limits, by the objective.

        Raises:
            InfeasibleError: none does; it has the fastest and the cheapest plan.
        """
