"""A plan and a run's position in it, shared by strategy, allocator and fleet rule."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cloudtune.model.catalog import Offer
from cloudtune.model.commands import PlanAnew
from cloudtune.model.placement import enough, open_groups
from cloudtune.model.plans import Group, Plan, StagePlan
from cloudtune.model.progress import OVER, Roster, TrialProgress
from cloudtune.model.text import end_text, stage_text
from cloudtune.model.trial import Trial, TrialId
from cloudtune.strategies.base import Task, View
from cloudtune.strategies.rungs import cap_epoch


class Itinerary:
    """A plan and a run's position in it.

    `trials` are those of the first stage, in the order in which they start. `plan` may change
    during the run, and with it the expected `end`. `stage` counts from 0; `members` are its trials.
    """

    def __init__(self, plan: Plan, trials: Sequence[Trial]) -> None:
        self.first_plan = self.plan = plan
        self.trials = {trial.id: trial for trial in trials}
        self.stage = 0
        self.stage_began: list[float] = []
        self.end = plan.estimate.end(0.0, 0.0)
        self.members: tuple[TrialId, ...] = tuple(self.trials)
        self.replanned = 0
        self.planned_at = 0.0
        self.stuck = False  # nothing of the stage is available, and there is no other plan
        self.restless = False  # an epoch has shown that the rest may need another plan
        self.heard: dict[TrialId, float] = {}  # when each reported its last epoch
        self.changes: list[PlanAnew] = []  # that aren't in the ledger yet
        self.leaving: frozenset[str] = frozenset()
        self.probes: Counter[Offer] = Counter()  # requested on top of the plan
        self.waiting: dict[TrialId, int] = {}  # join later: that stage's end
        self._disturbances = 0
        self._roster: Roster | None = None
        self._tasks: dict[TrialId, Task] = {}  # of the roster's trials

    @property
    def stage_plan(self) -> StagePlan:
        return self.plan.stages[self.stage]

    @property
    def stages_ahead(self) -> tuple[StagePlan, ...]:
        """The present stage and those after it."""
        return self.plan.stages[self.stage :]

    @property
    def groups_ahead(self) -> list[Group]:
        """The groups of these stages: wherever trials will train by the plan."""
        return [group for stage in self.stages_ahead for group in stage.groups]

    def rung_epoch(self, trial: Trial) -> int:
        """Return the epoch at which the stage ends for a trial: the rung, or its own last one."""
        return cap_epoch(trial, self.stage_plan.stage.end_epoch)

    def check(self, view: View) -> None:
        """Raise AssertionError if the roster's counters differ from the trials themselves."""
        fresh = Roster(
            self.members, self.stage_plan.stage.end_epoch, view.trials, view.running.changes
        )
        assert vars(self.roster(view)) == vars(fresh), "a trial changed without being counted"

    def complete(self, trial: TrialProgress) -> bool:
        """Whether a trial has a last epoch of its own and has reached it."""
        last = trial.trial.epochs
        return last is not None and trial.epoch >= last

    def started_trials(self, view: View) -> list[TrialProgress]:
        return [view.trials[name] for name in self.members if name in view.trials]

    def survivors(self, view: View) -> tuple[TrialId, ...]:
        """Return the members that aren't over, including those that have yet to start."""
        trials = view.trials
        return tuple(n for n in self.members if n not in trials or trials[n].status not in OVER)

    def roster(self, view: View) -> Roster:
        """Return the progress of the stage's trials."""
        roster = self._roster
        end_epoch = self.stage_plan.stage.end_epoch
        if roster is None or roster.members is not self.members or roster.end_epoch != end_epoch:
            roster = Roster(self.members, end_epoch, view.trials, view.running.changes)
            self._roster = roster
            self._tasks = {}
        return roster.follow()

    def task(self, name: TrialId) -> Task:
        """Return a trial's task in the stage, cached: waiting tasks are read at every event."""
        task = self._tasks.get(name)
        if task is None:
            trial = self.trials[name]
            task = self._tasks[name] = Task(trial, self.rung_epoch(trial))
        return task

    def has_disturbance(self, view: View) -> bool:
        """Whether an instance was refused, lost or interrupted in this stage."""
        return view.disturbances > self._disturbances

    def begin(self, view: View) -> None:
        """Begin the first stage, if none has begun."""
        if not self.stage_began:
            self.stage_began.append(view.now)
            self.end = self.plan.estimate.end(view.now, 0.0)

    def next_stage(self, view: View, chosen: tuple[TrialId, ...]) -> None:
        self.stage += 1
        self.stage_began.append(view.now)
        self.members = chosen
        self.waiting = {name: end for name, end in self.waiting.items() if name not in chosen}
        self._disturbances = view.disturbances

    def join(
        self,
        view: View,
        newcomers: Sequence[Trial],
        rest: Plan,
        members: tuple[TrialId, ...],
        waiting: Mapping[TrialId, int],
    ) -> None:
        """End the present stage now and follow a plan that begins now, with new trials.

        `members` begin; `waiting` ones join at the stage that ends at their epoch.
        """
        self.begin(view)
        self.trials.update((trial.id, trial) for trial in newcomers)
        self.splice(rest, self.stage + 1, view)
        self.first_plan = self.plan
        self.next_stage(view, members)
        self.waiting = dict(waiting)
        self.leaving = frozenset()
        self.restless = False
        self.probes.clear()

    def splice(self, rest: Plan, kept: int, view: View) -> None:
        """Append a plan that begins now to the first `kept` stages of the present one."""
        later = (replace(stage, begin=stage.begin + view.now) for stage in rest.stages)
        self.plan = replace(rest, stages=(*self.plan.stages[:kept], *later))
        self.end = rest.estimate.end(view.now, view.committed)
        self.planned_at = view.now
        self.replanned += 1

    def follow(self, plan: Plan, view: View) -> None:
        """Follow a plan that begins now, in the middle of the present stage.

        The stage keeps what its plan said up to now.
        """
        old = self.stage_plan
        now, *later = plan.stages
        gone = view.now - self.stage_began[-1]
        share = min(1.0, gone / old.seconds) if old.seconds > 0 else 0.0
        begun = replace(
            now,
            stage=replace(now.stage, start_epoch=old.stage.start_epoch),
            begin=-gone,
            seconds=gone + now.seconds,
            dollars=share * old.dollars + now.dollars,
        )
        self.splice(replace(plan, stages=(begun, *later)), self.stage, view)
        self.stuck = False

    def describe(self, detail: str = "") -> str:
        """Return in words what the stage has now, and when the plan ends."""
        parts = (
            stage_text(self.stage_plan),
            detail,
            f"to end at {end_text(self.end, self.plan.offers)}",
        )
        return "; ".join(filter(None, parts))

    def record(self, why: str, what: str) -> None:
        """Record a change of the plan, and when the run will end by it."""
        self.changes.append(PlanAnew(self.stage, why, what, self.end.at, self.end.dollars))

    def pop_changes(self) -> list[PlanAnew]:
        """Return the recorded changes of the plan, each once."""
        changes = self.changes
        self.changes = []
        return changes

    # ---- instances ---------------------------------------------------------------------------

    def missing(self, view: View) -> Counter[Offer]:
        """Return the instances of the stage that are neither held nor requested, by offer."""
        return self.needed_instances(view) - view.held

    def needed_instances(self, view: View) -> Counter[Offer]:
        """Return the instances that the stage should have, by offer.

        As many as planned; after failed trials, refusals or lost instances, only as many as the
        trials need that still have to train.
        """
        plan = self.stage_plan
        roster = self.roster(view)
        if not self.has_disturbance(view) and len(self.members) - roster.over >= plan.stage.trials:
            return plan.fleet
        return self._instances_for_roster(roster, view)

    def _instances_for_roster(self, roster: Roster, view: View) -> Counter[Offer]:
        """Return the instances for the trials that have to train: in place, or in a group."""
        placed = roster.placed_to_train
        needed: Counter[Offer] = Counter()
        # A trial on an offer that no longer has a group waits for a place too.
        waiting = roster.to_train - sum(placed[group.offer] for group in self.stage_plan.groups)
        for group in self.stage_plan.groups:
            joining = max(0, min(group.trials - placed[group.offer], waiting))
            waiting -= joining
            trials = placed[group.offer] + joining
            needed[group.offer] = enough(group, trials, view.held.get(group.offer, 0))
        return needed

    def out_of_reach(self, view: View) -> bool:
        """Whether the stage misses instances, all of which the cloud refuses."""
        missing = self.missing(view)
        return bool(missing) and all(map(view.refused, missing))

    def held_back(self, view: View) -> bool:
        """Whether the cap makes missing instances wait until others are gone."""
        if len(view.fleet.alive()) == len(view.fleet.staying()):
            return False
        alive = Counter(rented.offer for rented in view.fleet.alive())
        return not view.admits(alive + self.missing(view))

    def expected_instances(self, view: View) -> Counter[Offer]:
        """Return the instances that the stage has, or will have unless the cloud refuses."""
        missing = self.missing(view)
        if not self.held_back(view):
            missing = Counter({o: n for o, n in missing.items() if not view.avoided(o)})
        return view.held + missing

    # ---- where trials sit ---------------------------------------------------------------------

    def groups(self, view: View) -> list[Group]:
        """Return the groups that a waiting trial may join, in order."""
        placed = self.roster(view).placed
        return open_groups(self.stage_plan.groups, placed, self.expected_instances(view))

    def fits(self, view: View, trial: TrialProgress) -> bool:
        """Whether a trial has the width that its offer has in this stage."""
        group = self.stage_plan.group(trial.offer) if trial.offer else None
        return group is not None and view.width_for(trial, group.width, group.offer) == trial.width
