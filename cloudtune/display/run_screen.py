"""The output of a live run, line by line."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from cloudtune.display.live.panel import LEAST_LINES, RunPanel
from cloudtune.display.streams import never_waiting
from cloudtune.model import events
from cloudtune.model.commands import (
    Command,
    ExtendTrial,
    KeepInstance,
    Launch,
    PlanAnew,
    Release,
    StartTrial,
    StopTrial,
)
from cloudtune.model.plans import StagePlan
from cloudtune.model.progress import OVER, Status, TrialProgress, trial_of
from cloudtune.model.text import (
    cost_format,
    count_noun,
    gpus_text,
    machine_text,
    metric_text,
    stage_text,
    width_text,
)
from cloudtune.model.units import format_clock, format_seconds
from cloudtune.policy.run import RunPolicy
from cloudtune.runs.job import Job, make_basis
from cloudtune.strategies.rungs import rung_epochs

_PROGRESS_SECONDS = 15.0
_GLANCE_SECONDS = 0.5
_ENDINGS = {
    "done": "done",
    "budget": "stops at the budget",
    "deadline": "stops at the deadline",
    "failed": "stops: no trial is left",
    "no capacity": "stops: no capacity in the cloud",
}
_LEFT: dict[Status, str] = {
    "parked": "paused",
    "cut": "cut",
    "finished": "finished",
    "diverged": "diverged",
}


class RunScreen:
    """Prints a live run (`panel`): a line for each change, and one for progress.

    `rungs` are the epochs at which trials are compared: a trial that continues there without
    leaving its GPUs is reported as promoted. Epochs granted in between get no line.

    On a terminal the panel stays below the lines and is updated every second; with
    few lines it is the line of progress. Use the screen as a context manager: the panel disappears
    at its end. Until then unread output is dropped, and nothing waits for a reader.
    """

    def __init__(self, out: Console, panel: RunPanel, rungs: Iterable[int] = ()) -> None:
        self._out = out
        self._panel = panel
        self._scale = panel.scale
        self._policy = panel.policy
        self._rungs = frozenset(rungs)
        self._shown_at = 0.0
        trials = panel.policy.trials.values()  # a run that was taken over has some
        self._widths = {trial.id: trial.width for trial in trials if trial.sessions}
        self._paused = {
            trial.id
            for trial in trials
            if (trial.after if trial.status == "stopping" else trial.status) == "parked"
        }
        self._refusals: dict[str, str] = {}  # the last one of each machine that isn't to be had
        self._ending = False
        self._bottom = (
            Live(console=out, auto_refresh=False, transient=True, vertical_overflow="crop")
            if out.is_terminal
            else None
        )
        self._drawn_at = 0.0
        self._open = contextlib.ExitStack()
        self._shown_plan = self._stage_shown()  # a run that was taken over has a stage already

    def __enter__(self) -> Self:
        self._open.enter_context(never_waiting())
        if self._bottom is not None:
            self._open.enter_context(self._bottom)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def watch(self, event: events.Event, commands: tuple[Command, ...]) -> None:
        self._tell_event(event)
        self._tell_stage(event.at)
        for command in commands:
            if isinstance(command, PlanAnew):
                self._say(event.at, f"replans: {command.why}: {command.plan}")
        self._tell_commands(event.at, commands)
        if self._policy.ending is not None and not self._ending:
            self._ending = True
            best = self._policy.best
            saved = "the best checkpoint is saved, " if best is not None and best.checkpoint else ""
            ending = _ENDINGS.get(self._policy.ending.value, "stops")
            self._say(event.at, f"{ending}; {saved}giving everything back{self._but_kept()}")

    def _but_kept(self) -> str:
        """Return which instance the run keeps beyond its end, in words."""
        for rented in self._policy.fleet.alive():
            if rented.kept_until:
                until = format_clock(rented.kept_until)
                return f" but {rented.instance}, kept until {until} (Ctrl-C returns it)"
        return ""

    def _say(self, at: float, text: str) -> None:
        self._out.print(f"{format_clock(at):>5}  {text}", markup=False)

    def _tell_event(self, event: events.Event) -> None:
        fleet = self._policy.fleet
        match event:
            case events.InstanceLaunched():
                self._refusals.pop(self._machine(event.intent), None)
                self._say(event.at, f"{event.instance} launched; {self._instances()}")
            case events.InstanceBooting():
                self._say(event.at, f"{self._name(event.intent)}: {event.line}")
            case events.NodeJoined():
                self._say(event.at, f"{fleet[event.intent].instance} joined the cluster")
            case events.InstanceGone():
                rented = fleet[event.intent]
                dollars = self._panel.cost(rented.dollars(event.at))
                emulated = " (emulated)" * self._panel.emulated
                cost = "" if self._panel.free else f", cost {dollars}{emulated}"
                self._say(event.at, f"{rented.instance} returned{cost}; {self._instances()}")
                if event.console:
                    self._say(event.at, f"it never joined; its console ends with: {event.console}")
            case events.RunResumed():
                self._say(event.at, f"taken over; {self._instances()}")
            case events.RunContinued():
                more = f", and {count_noun(event.trials, 'more trial')}" if event.trials else ""
                self._say(event.at, f"continues with what it has trained{more}")
            case events.Interrupted():
                self._say(event.at, "interrupted; returning all instances (again: at once)")
            case events.TimerFired(name="tick"):
                self._show_progress(event.at)
            case _:
                self._tell_trouble(event)

    def _tell_trouble(self, event: events.Event) -> None:
        match event:
            case events.EpochDone() if event.unsaved:
                epoch = self._scale.at(event.epoch)
                text = f"{trial_of(event.session)}: {epoch} is not saved: {event.unsaved}"
                self._say(event.at, text)
            case events.LaunchFailed():
                self._tell_refusal(event)
            case events.NodeLost():
                self._say(event.at, f"{self._name(event.intent)} left the cluster: {event.reason}")
            case events.InterruptionNotice():
                left = format_seconds(max(0.0, event.due - event.at))
                self._say(event.at, f"the cloud takes {self._name(event.intent)} back in {left}")
            case events.RebalanceRecommended():
                name = self._name(event.intent)
                self._say(event.at, f"the cloud may soon take {name} back: others are used first")
            case events.TrialFailed():
                self._tell_failure(event)
            case events.TrialStopped(by_itself=True):
                trial = self._policy.trials[trial_of(event.session)]
                self._say(event.at, f"its script has ended: {self._standing(trial)}")
            case events.TrialLost():
                self._say(event.at, f"{trial_of(event.session)} lost its workers: {event.reason}")
            case _:
                pass

    def _tell_refusal(self, event: events.LaunchFailed) -> None:
        """Print why there is no instance; once, while it is asked for again and refused alike."""
        machine = self._machine(event.intent)
        text = f"no instance: {event.code}: {event.message}"
        if self._refusals.get(machine) != text:
            self._refusals[machine] = text
            again = "" if event.permanent else "; it is asked for again from time to time"
            self._say(event.at, f"{text}{again}")

    def _machine(self, intent: str) -> str:
        rented = self._policy.fleet[intent]
        return machine_text(rented.offer.instance_type.name, rented.offer.market, rented.zone)

    def _tell_failure(self, event: events.TrialFailed) -> None:
        trial = self._policy.trials[trial_of(event.session)]
        if event.unsynced and trial.status != "failed":
            self._say(
                event.at,
                f"the workers of {trial.id} don't train one model: {event.error}; from now on each "
                "trial has one GPU",
            )
        elif event.out_of_memory and trial.status != "failed":
            share = gpus_text(trial.min_width)
            trouble = f"{trial.id} ran out of memory"
            self._say(event.at, f"{trouble}; from now on trials start on {share} or more")
        else:
            self._say(event.at, f"{trial.id} failed: {event.error}")

    def _show_progress(self, at: float) -> None:
        if self._bottom is not None:
            # Past events are replayed faster than a person can read.
            if time.monotonic() >= self._drawn_at + _GLANCE_SECONDS:
                self._bottom.update(self.draw(at), refresh=True)
                self._drawn_at = time.monotonic()
        elif at - self._shown_at >= _PROGRESS_SECONDS:
            self._shown_at = at
            self._say(at, self._progress(at))

    def draw(self, at: float) -> RenderableType:
        """Return the run at that time (run seconds), fitted to the terminal."""
        width, height = self._out.size
        if height < LEAST_LINES:
            return Text(self._progress(at), no_wrap=True, overflow="ellipsis")
        return self._panel.draw(at, width, height)

    def _instances(self) -> str:
        alive = self._policy.fleet.alive()
        rented = [r for r in alive if r.launched_at is not None]
        asked = len(alive) - len(rented)
        return f"{count_noun(len(rented), 'instance')} rented" + (
            f", {asked} asked for" * (asked > 0)
        )

    def _money(self, at: float) -> str:
        """Return what is spent of the budget, and the forecast of the bill."""
        bill = self._panel.dollars(at)
        cost = self._panel.cost
        text = cost(bill.used) + _of_limit(bill.limit, cost)
        if self._policy.itinerary is not None:
            forecast = self._policy.forecast(at) + self._panel.before
            text += f" (forecast {cost(forecast)})"
        return f"{text} emulated" if self._panel.emulated else text

    def _progress(self, at: float) -> str:
        policy = self._policy
        it = policy.itinerary
        trials = list(policy.trials.values())
        running = sum(trial.live for trial in trials)
        ended = sum(trial.status in OVER for trial in trials)
        paused = len(trials) - running - ended
        limits = policy.limits
        parts = [
            *([] if it is None else [f"stage {it.stage + 1}/{len(it.plan.stages)}"]),
            f"{running} running, {paused} paused, {ended} ended of {len(trials)} started",
            f"{self._scale.counted(sum(trial.epoch for trial in trials))} done",
            self._best(),
            *([] if self._panel.free else [self._money(at)]),
            format_clock(at) + _of_limit(limits.deadline, format_clock),
            self._instances(),
        ]
        return " | ".join(parts)

    def _best(self) -> str:
        best = self._policy.best
        if best is None:
            return "no result"
        name = self._policy.state.metric.name
        lost = self._policy.best_lost
        unsaved = f"; {metric_text(lost.metric)} of {lost.trial} wasn't saved" if lost else ""
        return f"best {name} {metric_text(best.metric)} ({best.trial}{unsaved})"

    def _stage_shown(self) -> tuple[int, StagePlan | None]:
        it = self._policy.itinerary
        return (0, None) if it is None else (it.stage, it.stage_plan)

    def _tell_stage(self, at: float) -> None:
        (stage, plan) = self._stage_shown()
        (before, old) = self._shown_plan
        self._shown_plan = (stage, plan)
        it = self._policy.itinerary
        if it is None or plan is None or plan is old or stage == before:
            return
        trials = count_noun(len(it.members), "trial")
        until = self._scale.at(plan.stage.end_epoch)
        self._say(at, f"stage {stage + 1}: {trials} to {until}, {stage_text(plan)}")

    def _tell_commands(self, at: float, commands: Sequence[Command]) -> None:
        launches = Counter(
            machine_text(c.instance_type, c.market, c.zone)
            for c in commands
            if isinstance(c, Launch)
        )
        fresh = {machine: n for machine, n in launches.items() if machine not in self._refusals}
        if fresh:
            asked = ", ".join(f"{count} x {machine}" for machine, count in fresh.items())
            self._say(at, f"asks for {asked}")
        self._tell_trials(at, commands)
        for command in commands:
            if isinstance(command, Release):
                self._say(at, f"gives {self._name(command.intent)} back{self._late(command, at)}")
            elif isinstance(command, KeepInstance):
                name = self._name(command.intent)
                until = format_clock(command.until)
                self._say(at, f"keeps {name} until {until}: look with `cloudtune shell`")

    def _late(self, command: Release, at: float) -> str:
        """Say so if an instance goes back because it hasn't joined."""
        rented = self._policy.fleet[command.intent]
        if not rented.late:
            return ""
        return f": it has not joined in {format_seconds(at - rented.requested_at)}"

    def _tell_trials(self, at: float, commands: Sequence[Command]) -> None:
        """Print which trials leave, continue and start, and where."""
        self._tell_stops(at, commands)
        self._tell_promotions(at, commands)
        fresh: dict[str, list[str]] = {}
        for command in commands:
            if isinstance(command, StartTrial):
                before = self._widths.get(command.trial)
                self._widths[command.trial] = command.width
                if before is None and command.start_epoch == 0:
                    gpus = gpus_text(command.width, command.parallel)
                    fresh.setdefault(gpus, []).append(command.trial)
                else:
                    self._say(at, self._restart(command, before))
        for gpus, names in fresh.items():
            suffix = " each" if len(names) > 1 else ""
            self._say(at, f"starts {', '.join(names)} on {gpus}{suffix}")

    def _tell_stops(self, at: float, commands: Sequence[Command]) -> None:
        """Print which trials leave their GPUs; nothing at the end, when all do."""
        if self._policy.winding_down:
            return
        stopped: dict[str, list[str]] = {}
        for command in commands:
            if isinstance(command, StopTrial):
                trial = self._policy.trials[trial_of(command.session)]
                word = _LEFT.get(trial.after)
                if word is not None:
                    stopped.setdefault(word, []).append(self._standing(trial))
                if trial.after == "parked":
                    self._paused.add(trial.id)
        for word, names in stopped.items():
            self._say(at, f"{word}: {', '.join(names)}")

    def _tell_promotions(self, at: float, commands: Sequence[Command]) -> None:
        promoted: dict[int, list[str]] = {}
        for command in commands:
            if isinstance(command, ExtendTrial):
                trial = self._policy.trials[trial_of(command.session)]
                if trial.epoch in self._rungs:
                    promoted.setdefault(command.until_epoch, []).append(self._standing(trial))
        for until, names in promoted.items():
            self._say(at, f"promoted: {', '.join(names)}, on to {self._scale.at(until)}")

    def _standing(self, trial: TrialProgress) -> str:
        name = self._policy.state.metric.name
        metric = "" if trial.metric is None else f" ({name} {trial.metric:.4g})"
        return f"{trial.id} at {self._scale.at(trial.epoch)}{metric}"

    def _restart(self, command: StartTrial, before: float | None) -> str:
        """Return how a trial continues that trained `before` GPUs wide."""
        if before is None:
            return (
                f"starts {command.trial} on {gpus_text(command.width, command.parallel)}, from "
                f"{self._scale.at(command.start_epoch)} of another trial's checkpoint"
            )
        paused = command.trial in self._paused
        self._paused.discard(command.trial)
        gpus = gpus_text(command.width, command.parallel)
        epoch = self._scale.at(command.start_epoch)
        if command.width != before:
            how = "grows" if command.width > before else "shrinks"
            return f"{command.trial} {how} from {width_text(before)} to {gpus}, from {epoch}"
        if not paused:
            return f"{command.trial} moves to a free place, from {epoch}"
        until = self._scale.text(command.until_epoch)
        return f"resumes {command.trial} from {epoch} to {until}, on {gpus}"

    def _name(self, intent: str) -> str:
        return self._policy.fleet[intent].instance or f"request {intent}"


def _of_limit(limit: float | None, show: Callable[[float], str]) -> str:
    return "" if limit is None else f" of {show(limit)}"


def make_screen(job: Job, policy: RunPolicy, out: Console) -> RunScreen:
    """Return the screen of a run of a job."""
    epochs = job.experiment.span
    return RunScreen(
        out, make_panel(job, policy), rung_epochs(epochs.min, epochs.max, job.experiment.eta)
    )


def make_panel(job: Job, policy: RunPolicy) -> RunPanel:
    """Return the figures of a run of a job at its present moment."""
    return RunPanel(
        policy,
        forecast=job.plan.forecast,
        before=job.measuring,
        free=job.plan.free,
        cost=cost_format(job.plan.offers),
        emulated=make_basis(job.experiment, job.rentables).emulated,
        scale=job.experiment.scale,
    )


def print_measuring_event(out: Console, event: events.Event, commands: tuple[Command, ...]) -> None:
    """Print an event of a measurement."""
    lines = []
    match event:
        case events.InstanceLaunched():
            lines.append(f"{event.instance} launched")
        case events.NodeJoined():
            lines.append("joined the cluster")
        case events.InstanceGone():
            lines.append("returned")
        case events.TrialFailed():
            lines.append(f"{trial_of(event.session)} failed: {event.error}")
        case events.TrialLost():
            lines.append(f"{trial_of(event.session)} lost its workers: {event.reason}")
        case _:
            pass
    starts = [c for c in commands if isinstance(c, StartTrial)]
    if starts:
        lines.append(
            f"trains {count_noun(len(starts), 'trial')}, "
            f"{gpus_text(starts[0].width, starts[0].parallel)} each"
        )
    with never_waiting():
        for line in lines:
            out.print(f"{format_clock(event.at):>5}  {line}", markup=False)
