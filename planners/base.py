"""The interface of planners: request, plan, and the error when no plan meets the limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from cloudtune.errors import CloudtuneError
from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Allowance, Charges, Objective, Plan, Rentable, Stage, admits
from cloudtune.model.trial import Width


class InfeasibleError(CloudtuneError):
    """No plan meets the limits.

    `fastest` and `cheapest` are the two ends of what is possible, or None if nothing is; `nearest`
    is the plan that comes closest to both limits, if one was searched for.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        fastest: Plan | None,
        cheapest: Plan | None,
        nearest: Plan | None = None,
    ) -> None:
        super().__init__(message)
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
