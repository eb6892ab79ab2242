"""The state machine of a run by a plan, which is solved anew where the cloud won't have it.

Where an offer of the stage is refused in every zone, or an instance is taken back, the rest of the
job is planned again from what there is: the work left, the instances held, the speeds measured, the
time and money left, and without the offers that are refused. Pure, as `RunPolicy` is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudtune.errors import InfeasibleError
from cloudtune.plan import Estimate, Limits, Live, Plan, PlanRequest, Stage
from cloudtune.policy import RunPolicy
from cloudtune.speeds import Speeds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.commands import Command
    from cloudtune.events import EpochDone, InstanceGone, InterruptionNotice, LaunchFailed
    from cloudtune.plan import Planner, Rentable
    from cloudtune.planners.seer import Reserve
    from cloudtune.trial import TrialId


class ResolvingPolicy(RunPolicy):
    """Plans the rest of the job anew when the cloud refuses an offer, or takes an instance back.

    `rentables` are all that may be rented, `planner` makes the plans, `reserve` is what they leave
    of the limits; the other arguments are `RunPolicy`'s. Where no plan for the rest keeps the
    limits it goes on by the one it has, and what is refused is asked for again after a while.
    """

    def __init__(
        self, *, rentables: Sequence[Rentable], reserve: Reserve, planner: Planner, **options: Any
    ) -> None:
        super().__init__(**options)
        self.rentables = tuple(rentables)
        self.reserve = reserve
        self.planner = planner
        self.first_plan = self.plan
        self.speeds = Speeds()
        self.resolved = 0
        self._shaken = False
        self._by_offer = {each.offer: each for each in reversed(self.rentables)}

    # ---- when ----------------------------------------------------------------------------

    def _note_epoch(self, event: EpochDone) -> Iterable[Command]:
        trial = self._session(event.session)
        if trial is not None and trial.status != "stopping" and trial.offer is not None:
            profile = self._by_offer[trial.offer].profile
            self.speeds.note(trial.id, profile, trial.width, event.seconds)
        return super()._note_epoch(event)

    def _note_refusal(self, event: LaunchFailed) -> None:
        rented = self.fleet[event.intent]
        before = self.avoided(rented.offer)
        super()._note_refusal(event)
        self._shaken |= not rented.released and not before and self.avoided(rented.offer)

    def _note_notice(self, event: InterruptionNotice) -> None:
        super()._note_notice(event)
        self._shaken = True

    def _note_gone(self, event: InstanceGone) -> None:
        rented = self.fleet[event.intent]
        # Of one that was to go there was notice; one that never joined may come again.
        self._shaken |= rented.usable
        super()._note_gone(event)

    def _fit_fleet(self) -> Iterable[Command]:
        if self._shaken:
            self._shaken = False
            self._resolve()
        return super()._fit_fleet()

    # ---- how -----------------------------------------------------------------------------

    def _resolve(self) -> None:
        """Follow another plan for the rest of the job, if what is missing can't be had by this."""
        missing = self._missing()
        members = [name for name in self.members if self.trials[name].under_way]
        if not members or not (any(map(self.avoided, missing)) or self._late()):
            return
        request = self._request(self._work_left(members), self._limits_left(), members)
        try:
            found = self.planner.plan(request)
        except InfeasibleError:
            return
        self.resolved += 1
        self._go_on_by(found)

    def _late(self) -> bool:
        """Whether the rest of the present plan, begun now, would miss the deadline."""
        deadline = self._limits_left().deadline
        rest = self.plan.stages[self.stage :]
        return deadline is not None and sum(stage.seconds for stage in rest) > deadline

    def _work_left(self, members: Sequence[TrialId]) -> tuple[Stage, ...]:
        """Return the stages that are left, this one from where the last of its trials is."""
        later = tuple(stage.stage for stage in self.plan.stages[self.stage + 1 :])
        rung = self.stage_plan.stage.end_epoch
        first = min(self.trials[name].epoch for name in members)
        trials = max(len(members), later[0].trials if later else 0)
        return (Stage(trials, min(first, rung - 1), rung), *later)

    def _go_on_by(self, rest: Plan) -> None:
        """Have the present stage and all later ones go by a new plan."""
        self._splice(rest, self.stage)
        self.stage_began[-1] = self.now

    def _splice(self, rest: Plan, kept: int) -> None:
        """Put a plan that begins now behind the first stages of the present one."""
        later = (replace(stage, begin=stage.begin + self.now) for stage in rest.stages)
        estimate = Estimate(
            self.now + rest.estimate.seconds, self._committed() + rest.estimate.dollars
        )
        self.plan = replace(rest, stages=(*self.plan.stages[:kept], *later), estimate=estimate)

    # ---- what a planner is asked ---------------------------------------------------------

    def _request(
        self, work: tuple[Stage, ...], limits: Limits, trials: Sequence[TrialId]
    ) -> PlanRequest:
        """Return the question for work that these trials are to do."""
        return PlanRequest(
            work=work,
            rentables=self._rentables_for(trials),
            limits=limits,
            max_instances=self.plan.max_instances,
            fleet=self._held(trials),
            charges=self.plan.charges,
            vcpu_quotas=self.plan.vcpu_quotas,
        )

    def _limits_left(self) -> Limits:
        """Return what a plan for the rest may take."""
        deadline, budget = self.limits.deadline, self.limits.budget
        time = None if deadline is None else deadline - self.now - self.reserve.seconds
        money = None if budget is None else budget - self._committed()
        return self.reserve.limits(Limits(time, money))

    def _committed(self) -> float:
        """Return what is spent, or bound to be spent whatever is done.

        Of the instances that are held it is their price till now: the plan for the rest has what
        they cost from now on, what is still owed of their minimum charge included.
        """
        charges = self.charges
        running = self.now - (self.now if self.began is None else self.began)
        held = {rented.intent for rented in self.fleet.wanted()}
        return (
            sum(
                (self.now - rented.began_at) * rented.offer.usd_per_second
                if rented.intent in held
                else rented.dollars(self._ahead)
                for rented in self.fleet
            )
            + self.fleet.launches * charges.usd_per_launch
            + running * charges.usd_per_second
        )

    def _held(self, trials: Sequence[TrialId]) -> tuple[Live, ...]:
        """Return the instances that are to stay, and the width of these trials, if all sit there.

        Where some were parked to let others train, none is counted on to train on where it is.
        """
        settled = all(self.trials[name].live for name in trials)
        ages: dict[Offer, list[float]] = {}
        for rented in self.fleet.wanted():
            ages.setdefault(rented.offer, []).append(max(0.0, self.now - rented.began_at))
        widths = {group.offer: group.width for group in self.stage_plan.groups if settled}
        return tuple(Live(o, tuple(sorted(each)), widths.get(o)) for o, each in ages.items())

    def _rentables_for(self, trials: Sequence[TrialId]) -> tuple[Rentable, ...]:
        """Return what there is for these trials: at their speeds, without what is refused."""
        held = self.fleet.held()
        found = []
        for rentable in self.reserve.rentables(self.rentables):
            most = held[rentable.offer] if self._barred(rentable.offer) else rentable.most
            if most > 0:
                found.append(replace(self.speeds.corrected(rentable, trials), most=most))
        return tuple(found)

    def _barred(self, offer: Offer) -> bool:
        """Whether a plan is to do with what is held of an offer."""
        return self.avoided(offer)
