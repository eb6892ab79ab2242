"""The trials of a run on its GPUs: where they start, how they move, how they make room."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cloudtune.model.commands import Command, ExtendTrial, StartTrial, StopTrial
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import GPU_ROUNDING
from cloudtune.policy.base import Move
from cloudtune.strategies.base import Go, Shape, Task, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cloudtune.model.catalog import Offer
    from cloudtune.model.plans import Rentable
    from cloudtune.model.progress import Status
    from cloudtune.model.trial import TrialId, Width
    from cloudtune.policy.free_gpus import Placement
    from cloudtune.policy.state import RunState
    from cloudtune.strategies.base import Allocator, Decision

_AFTER: dict[Verdict, Status] = {
    Verdict.HOLD: "parked",
    Verdict.PAUSE: "parked",
    Verdict.CUT: "cut",
    Verdict.FINISH: "finished",
}


class SessionKeeper:
    """Starts, moves and stops trials at the widths that an allocator sets.

    `max_concurrent` caps the trials that hold GPUs at once.
    """

    def __init__(
        self, state: RunState, allocator: Allocator, max_concurrent: int | None = None
    ) -> None:
        self._state = state
        self.allocator = allocator
        self.max_concurrent = max_concurrent
        self.resizes = 0
        self._widths_of: Sequence[Rentable] = ()
        self._widths: set[Width] = set()

    # ---- one trial ---------------------------------------------------------------------------

    def stop(self, trial: TrialProgress, after: Status, *, stacks: bool = False) -> Command:
        """End a trial's session; `after` is what becomes of the trial."""
        self._state.live.become(trial, "stopping")
        trial.after = after
        self._state.delays.stops(trial.id, self._state.now)
        return StopTrial(trial.session, stacks)

    def go_on(self, trial: TrialProgress, decision: Go) -> list[Command]:
        """Let a trial that has reported continue, at the width that it should have now."""
        granted = self._state.granted
        before = granted[trial.id]
        granted[trial.id] = until = max(decision.until, before)
        moved = self._resize(trial)
        if moved is not None:
            return [moved]
        self._state.live.become(trial, "training")
        return [ExtendTrial(trial.session, until)] if until > before else []

    def let_on(self, trial: TrialProgress) -> Command:
        """Let a trial that waits at its rung continue where it is, or move to its new width."""
        moved = self._resize(trial)
        if moved is not None:
            return moved
        self._state.live.become(trial, "training")
        return ExtendTrial(trial.session, self._state.granted[trial.id])

    def preempt(self, verdicts: Mapping[TrialId, Verdict]) -> list[Command]:
        """Stop the trials that the strategy wants stopped, whatever their state."""
        state = self._state
        commands = []
        for name, verdict in verdicts.items():
            trial = state.trials[name]
            state.live.changes.append(trial)
            if state.again.pop(name, None) is not None:
                state.drop_move(trial)
                trial.status = _AFTER[verdict]
            elif trial.status == "stopping" and trial.after in {"waiting", "parked"}:
                state.drop_move(trial)  # it may be moving
                trial.after = _AFTER[verdict]
            elif trial.live and trial.status != "stopping":
                commands.append(self.stop(trial, _AFTER[verdict]))
            elif trial.status == "parked":
                trial.status = _AFTER[verdict]
        return commands

    def carry_out(self, trial: TrialProgress, verdict: Verdict) -> Command | None:
        """Carry out a verdict on a trial that has reported; None if it waits on its GPUs."""
        if verdict is Verdict.HOLD and trial.epoch >= self._state.granted[trial.id]:
            return None
        # It must pause before its grant is used up; its workers would otherwise train on.
        return self.stop(trial, _AFTER[verdict])

    def _resize(self, trial: TrialProgress) -> Command | None:
        """Begin to move a trial to the width that it should have, if there is room now.

        A trial whose instance is about to go moves at its present width. A trial whose last epoch
        wasn't saved doesn't move: it would train that epoch again after each move, and a trial that
        never saves would start over. The trial keeps its GPUs until it has stopped; the GPUs it
        grows by are reserved meanwhile. Without room it waits if others need the place of its
        instance.
        """
        state = self._state
        if trial.checkpoint_epoch < trial.epoch:
            return None
        assert trial.offer is not None
        asked = self.allocator.resized(state, trial) or trial.width
        width = state.width_for(trial, asked, trial.offer)
        if width == trial.width and state.free.stays(trial.placement):
            return None
        fitting = state.free.move(width, trial.offer, trial.placement)
        if fitting is None:
            return self.stop(trial, "waiting") if self._makes_way(trial) else None
        placement, reserved = fitting
        state.moves[trial.id] = Move(placement[0], width, reserved)
        self.resizes += 1
        return self.stop(trial, "waiting")

    def _makes_way(self, trial: TrialProgress) -> bool:
        """Whether a trial's instance must go before those that replace it can be requested."""
        if not self._state.crowded:
            return False
        rented = [self._state.fleet.of(piece.instance) for piece in trial.placement]
        return any(each.surplus and not each.being_lost for each in rented)

    # ---- after an end ------------------------------------------------------------------------

    def settle(self, trial: TrialProgress, decision: Decision) -> None:
        """Carry out a decision on a parked trial that was made after its stop."""
        if isinstance(decision, Go):
            granted = self._state.granted
            granted[trial.id] = max(granted[trial.id], decision.until)
        else:
            self._state.live.changes.append(trial)
            trial.status = _AFTER[decision]

    def take_up(self, trial: TrialProgress) -> None:
        """Continue a parked trial from its last checkpoint, up to the epoch that it may reach."""
        trial.rewind()
        self._state.live.changes.append(trial)
        if trial.epoch < self._state.granted[trial.id]:
            trial.status = "waiting"
            trial.offer = None
            self._state.again[trial.id] = trial

    def park(self, trial: TrialProgress) -> None:
        """Let a trial without a session wait at its last checkpoint until the strategy wants it."""
        if trial.status in {"waiting", "parked"}:
            self._state.again.pop(trial.id, None)
            self._state.drop_move(trial)
            trial.rewind()
            trial.status = "parked"
            self._state.live.changes.append(trial)

    # ---- starting ----------------------------------------------------------------------------

    def start_again(self) -> list[Command]:
        """Start the trials that have moved, or were lost with their instance, where they fit."""
        state = self._state
        commands: list[Command] = []
        if not state.again:
            return commands
        # On spot hundreds of similar trials may wait for a full fleet: try each shape once.
        in_vain: set[tuple[Shape, ...]] = set()
        is_room = state.free.free_gpus > 0
        for trial in list(state.again.values()):
            task = Task(trial.trial, state.granted[trial.id])
            move = state.moves.get(trial.id)
            fitting = None
            if move is not None:
                state.drop_move(trial)  # so that its own reserved GPUs count as free
                fitting = self._fitting_move(move, trial)
                in_vain.clear()
                is_room = True
            elif is_room and (shapes := tuple(self._shapes_again(task))) not in in_vain:
                fitting = self._first_fitting(shapes)
                if fitting is None:
                    in_vain.add(shapes)
            if fitting is not None:
                del state.again[trial.id]
                commands.append(self._start(task, *fitting))
        return commands

    def _fitting_move(self, move: Move, trial: TrialProgress) -> tuple[Placement, Width] | None:
        """Return where a moved trial continues: at its new width, or else at its old one."""
        if self.full:
            return None
        for asked in (move.width, trial.width):
            width = self._state.width_for(trial, asked, move.offer)
            placement = self._state.free.find(width, move.offer)
            if placement is not None:
                return placement, width
        return None

    def start(self, tasks: Sequence[Task]) -> tuple[list[Command], list[Sequence[Shape]]]:
        """Start the tasks that fit, in order.

        If a trial that continues from a rung doesn't fit, the free GPUs are kept for it. Otherwise
        less wanted trials would take them, and it might wait until there is nothing new to start.

        Returns the commands, and the first choice of shape of each task that has to wait.
        """
        live = self._state.live.by_id
        ready = [task for task in tasks if task.trial.id not in live]
        commands: list[Command] = []
        waiting: list[Sequence[Shape]] = []
        in_vain: Sequence[Shape] = ()  # what didn't fit: no GPU becomes free meanwhile
        kept = False
        for task, shapes in zip(ready, self._shapes(ready), strict=True):
            fitting = None if kept or shapes == in_vain else self._first_fitting(shapes)
            if fitting is None:
                in_vain = shapes
                waiting += [shapes] if shapes else []
                kept = kept or self._keeps(task, shapes)
            else:
                commands.append(self._start(task, *fitting))
        return commands, waiting

    def _keeps(self, task: Task, shapes: Sequence[Shape]) -> bool:
        """Whether free GPUs are kept for a task that doesn't fit.

        Only for a trial that has trained and that the present instances could hold; and not if the
        allocator names the offer, because then others don't compete for the same GPUs.
        """
        trial = self._state.trials.get(task.trial.id)
        if trial is None or not trial.epoch or any(shape.offer is not None for shape in shapes):
            return False
        return any(self._state.free.could_hold(shape.width) for shape in shapes)

    def run_risks(self, tasks: Sequence[Task]) -> list[Command]:
        """Start waiting tasks on instances at risk, if no other GPUs are about to be free.

        An epoch that may be lost costs less than GPUs that idle.
        """
        state = self._state
        commands: list[Command] = []
        if not state.free.at_risk:
            return commands
        coming = self._coming()
        lost = [Task(trial.trial, state.granted[trial.id]) for trial in state.again.values()]
        for task in (*lost, *(it for it in tasks if it.trial.id not in state.live.by_id)):
            shapes = tuple(next(iter(self._shapes([task]))))
            fitting = None
            if not _awaits(coming, shapes):
                fitting = self._first_fitting(shapes, at_risk=True)
            if fitting is not None:
                state.again.pop(task.trial.id, None)
                commands.append(self._start(task, *fitting))
        return commands

    def _coming(self) -> dict[Offer, Width]:
        """Return the GPUs of instances yet to join, and of sessions stopping on safe instances."""
        state = self._state
        coming: dict[Offer, Width] = {}
        for rented in state.fleet.staying():
            if not rented.joined:
                coming[rented.offer] = coming.get(rented.offer, 0.0) + rented.offer.gpus
        for trial in state.live if state.live.stopping else ():
            stays = state.free.stays(trial.placement) and not state.free.risks(trial.placement)
            if trial.status == "stopping" and trial.after != "waiting" and stays and trial.offer:
                coming[trial.offer] = coming.get(trial.offer, 0.0) + trial.width
        return coming

    def start_anyhow(self, tasks: Sequence[Task]) -> list[Command]:
        """Start waiting tasks at any width that there is room for.

        The last resort, where nothing trains and nothing ever would.
        """
        state = self._state
        lost = [Task(trial.trial, state.granted[trial.id]) for trial in state.again.values()]
        commands: list[Command] = []
        for task in (*lost, *tasks):
            shapes = next(iter(self._shapes([task])))
            fitting = self._any_placement(shapes[0].width if shapes else 0.0)
            if fitting is not None and not self.full:
                state.again.pop(task.trial.id, None)
                commands.append(self._start(task, *fitting))
        return commands

    def make_room(self, waiting: Sequence[Sequence[Shape]]) -> list[Command]:
        """Stop trials that only wait at a rung, if others need their GPUs.

        `waiting` has the shapes of each trial that doesn't fit, any of which would do. As few as
        possible are stopped, and none for GPUs that stopping trials are about to free: a stopped
        trial must be set up again later.
        """
        commands: list[Command] = []
        wanted: dict[tuple[Offer | None, ...], float] = {}
        live = self._state.live
        if not live.at_rung:
            return commands
        for shapes in waiting:
            offers = tuple(shape.offer for shape in shapes)
            wanted[offers] = wanted.get(offers, 0.0) + max(shape.width for shape in shapes)
        for offers, missing in wanted.items():
            here = [trial for trial in live if None in offers or trial.offer in offers]
            gpus = missing - sum(trial.width for trial in here if trial.status == "stopping")
            idle = [trial for trial in here if trial.status == "at rung"]
            while gpus > 0 and idle:
                gpus -= idle[-1].width
                commands.append(self.stop(idle.pop(), "parked"))
        return commands

    @property
    def full(self) -> bool:
        """Whether the maximum number of trials hold GPUs, including those that wait at a rung."""
        return self.max_concurrent is not None and len(self._state.live) >= self.max_concurrent

    def room(self, max_gpus: int, min_width: Width) -> int:
        """Return how many more tasks could train on `max_gpus` GPUs at `min_width`."""
        live = self._state.live
        room = math.floor((max_gpus - live.busy_gpus) / min_width + GPU_ROUNDING)
        if self.max_concurrent is not None:
            room = min(room, self.max_concurrent - len(live) + live.at_rung)
        # If nothing trains, ask for one task of any width: it may have to make do with less.
        room = max(room, 1 if live.at_rung == len(live) else 0)
        return room - len(self._state.again)

    # ---- where, and how wide -----------------------------------------------------------------

    def _shapes(self, tasks: Sequence[Task]) -> Iterator[Sequence[Shape]]:
        """Return the allocator's shapes for each task, in widths that its trial can use."""
        state = self._state
        shapes = self.allocator.shapes(state, tasks)
        return self._refit(tasks, shapes) if state.refits else shapes

    def _refit(
        self, tasks: Sequence[Task], offered: Iterator[Sequence[Shape]]
    ) -> Iterator[Sequence[Shape]]:
        """Yield shapes at widths where no trial has failed; one per offer where any would do."""
        state = self._state
        everywhere = [rentable.offer for rentable in state.rentables]
        for task, shapes in zip(tasks, offered, strict=True):
            trial = state.trials.get(task.trial.id)
            widths = {
                Shape(state.width_for(trial, shape.width, offer), shape.offer): None
                for shape in shapes
                for offer in ([shape.offer] if shape.offer else everywhere)
            }
            yield list(widths)

    def _shapes_again(self, task: Task) -> Sequence[Shape]:
        """Return the shapes in which a lost trial may continue, best first.

        Its own shape comes first, then narrower ones: continuing at once on fewer GPUs beats
        waiting for another instance to boot. Not if the allocator names an offer: a plan is strict.
        """
        shapes = next(iter(self._shapes([task])))
        if not shapes or any(shape.offer is not None for shape in shapes):
            return shapes
        wanted = shapes[0].width
        least = self._state.trials[task.trial.id].min_width
        narrower = (width for width in self._known_widths if max(least, 1e-9) <= width < wanted)
        return [*shapes, *(Shape(width) for width in sorted(narrower, reverse=True))]

    @property
    def _known_widths(self) -> set[Width]:
        rentables = self._state.rentables
        if rentables is not self._widths_of:
            self._widths_of = rentables
            self._widths = {width for r in rentables for width in r.profile.widths}
        return self._widths

    def _first_fitting(
        self, shapes: Iterable[Shape], *, at_risk: bool = False
    ) -> tuple[Placement, Width] | None:
        if self.full:
            return None
        free = self._state.free
        for shape in shapes:
            placement = free.find(shape.width, only=shape.offer)
            if placement is not None and (at_risk or not free.risks(placement[1])):
                return placement, shape.width
        return None

    def _any_placement(self, asked: Width) -> tuple[Placement, Width] | None:
        """Return free GPUs: as many as requested, else fewer, else more."""
        for width in sorted(
            self._known_widths, key=lambda width: (width > asked, abs(width - asked))
        ):
            placement = self._state.free.find(width)
            if placement is not None:
                return placement, width
        return None

    def _start(self, task: Task, placement: Placement, width: Width) -> Command:
        state = self._state
        trial = state.trials.get(task.trial.id)
        if trial is None:
            trial = state.trials[task.trial.id] = self._new(task)
        elif trial.status == "parked":
            trial.rewind()
        state.granted[trial.id] = task.until
        trial.sessions += 1
        trial.status = "starting"
        trial.width = width
        trial.offer, trial.placement = placement
        state.live.add(trial)
        state.delays.asks(trial.id, state.now)
        state.free.take(trial.placement)
        return StartTrial(
            session=trial.session,
            trial=trial.id,
            config=trial.trial.config,
            width=width,
            placement=trial.placement,
            checkpoint=trial.checkpoint,
            start_epoch=trial.epoch,
            until_epoch=task.until,
            parallel=state.profiled(trial.offer).profile.parallel.get(width, ""),
        )

    def _new(self, task: Task) -> TrialProgress:
        trial = TrialProgress(task.trial)
        if task.clone_of is not None:
            parent = self._state.trials[task.clone_of]
            trial.checkpoint = parent.checkpoint
            trial.checkpoint_epoch = parent.checkpoint_epoch
            trial.epoch = parent.checkpoint_epoch
        return trial


def _awaits(coming: dict[Offer, Width], shapes: Sequence[Shape]) -> bool:
    """Whether GPUs about to be free suffice for a trial; if so, take them out of `coming`."""
    for shape in shapes:
        for offer in coming if shape.offer is None else (shape.offer,):
            if coming.get(offer, 0.0) >= shape.width:
                coming[offer] -= shape.width
                return True
    return False
