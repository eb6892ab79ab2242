"""What a person sees of a profile, of a run and of what is alive; a plan has `screen_plan`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar, Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from cloudtune import accounting_tables, elastic_tables
from cloudtune.commands import Launch, Release, StartTrial
from cloudtune.events import (
    InstanceGone,
    InstanceLaunched,
    Interrupted,
    InterruptionNotice,
    LaunchFailed,
    NodeJoined,
    NodeLost,
    RunResumed,
    TimerFired,
    TrialFailed,
    TrialLost,
)
from cloudtune.phrases import (
    counted,
    gpus_text,
    group_text,
    machine_text,
    percent,
    stage_text,
    width_text,
)
from cloudtune.screen_sheets import print_sheet
from cloudtune.units import format_clock, format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cloudtune.bookkeeping import Books
    from cloudtune.cleanup import Found
    from cloudtune.commands import Command
    from cloudtune.events import Event
    from cloudtune.policy import RunPolicy
    from cloudtune.reporting import Report, StageReport, WidthChange
    from cloudtune.scaling import ScalingProfile

_PROGRESS_SECONDS = 15.0
_WIDTH = 100
_MOST_LINES = 24
"""More lines of one kind than that are left to the JSON."""
_ENDINGS = {
    "done": "all trials are done; giving everything back",
    "budget": "stops for the budget; the best checkpoint is saved, giving everything back",
    "deadline": "stops for the deadline; the best checkpoint is saved, giving everything back",
    "failed": "stops: no trial is left; giving everything back",
    "no capacity": "stops: the cloud has no such instance now",
}


def console() -> Console:
    """Return standard output; a file or a pipe gets lines of 100 characters without colours."""
    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(width=_WIDTH, highlight=False, soft_wrap=True)


def show_profile(out: Console, profile: ScalingProfile) -> None:
    """Print what is known of a script's speed on one instance type."""
    derived = f" (derived, uncertain by {percent(profile.error)})" if profile.error > 0 else ""
    table = Table(title=escape(f"Profile: {profile.instance_type}{derived}"), title_justify="left")
    for name in ("what", "mean", "spread", "measured"):
        table.add_column(name, justify="left" if name == "what" else "right")
    if profile.memory:
        table.add_column("GPU memory each", justify="right")
    for width in profile.widths:
        found = profile.epoch[width]
        gain = profile.epoch[profile.widths[0]].mean / found.mean
        what = f"epoch on {gpus_text(width)} (x{gain:.2f})"
        memory = [f"{profile.memory[width]:,.0f} MiB"] if width in profile.memory else []
        table.add_row(what, f"{found.mean:.2f} s", f"{found.sd:.2f} s", f"{found.n}", *memory)
    delays = {
        "request to launch": profile.launch,
        "launch to node ready": profile.boot,
        "start of a trial": profile.start,
        "checkpoint, stop, start again": profile.resize,
        "return of an instance": profile.release,
    }
    for what, found in delays.items():
        table.add_row(what, f"{found.mean:.2f} s", f"{found.sd:.2f} s", f"{found.n}")
    out.print(table)
    out.print(profile.source, markup=False)


class Screen:
    """Tells a run as it goes: a line for each thing that changes, and one of progress.

    On a terminal the line of progress stays at the bottom and is renewed every second; use the
    screen as a context, so that it goes in the end.
    """

    endings: ClassVar[Mapping[str, str]] = _ENDINGS

    def __init__(self, out: Console, policy: Books) -> None:
        self._out = out
        self._books = policy
        self._shown_at = 0.0
        self._widths: dict[str, float] = {}
        self._ending = False
        self._bottom = Status("begins", console=out, spinner="dots") if out.is_terminal else None

    def __enter__(self) -> Self:
        if self._bottom is not None:
            self._bottom.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bottom is not None:
            self._bottom.stop()

    def watch(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Print what an event and its commands mean."""
        self._tell_event(event)
        self._tell_stage(event.at)
        self._tell_commands(event.at, commands)
        if self._books.ending is not None and not self._ending:
            self._ending = True
            self._say(event.at, self.endings.get(self._books.ending.value, "stops"))

    def _say(self, at: float, text: str) -> None:
        self._out.print(f"{format_clock(at):>5}  {text}", markup=False)

    def _tell_event(self, event: Event) -> None:
        fleet = self._books.fleet
        match event:
            case InstanceLaunched():
                self._say(event.at, f"{event.instance} launched; {self._instances()}")
            case NodeJoined():
                self._say(event.at, f"{fleet[event.intent].instance} joined the cluster")
            case InstanceGone():
                rented = fleet[event.intent]
                cost = format_dollars(rented.dollars(event.at))
                self._say(event.at, f"{rented.instance} returned, cost {cost}; {self._instances()}")
            case RunResumed():
                self._say(event.at, f"taken over; {self._instances()}")
            case Interrupted():
                self._say(event.at, "interrupted; giving everything back")
            case TimerFired(name="tick"):
                self._show_progress(event.at)
            case _:
                self._tell_trouble(event)

    def _tell_trouble(self, event: Event) -> None:
        match event:
            case LaunchFailed():
                self._say(event.at, f"no instance: {event.code}: {event.message}")
            case NodeLost():
                self._say(event.at, f"{self._name(event.intent)} left the cluster: {event.reason}")
            case InterruptionNotice():
                left = format_seconds(max(0.0, event.due - event.at))
                self._say(event.at, f"the cloud takes {self._name(event.intent)} back in {left}")
            case TrialFailed():
                self._tell_failure(event)
            case TrialLost():
                self._say(event.at, f"{_trial(event.session)} lost its workers: {event.reason}")
            case _:
                pass

    def _tell_failure(self, event: TrialFailed) -> None:
        trial = self._books.trials[_trial(event.session)]
        if event.out_of_memory and trial.status != "failed":
            share = gpus_text(trial.least_width)
            self._say(event.at, f"{trial.id} ran out of memory; goes on with {share} or more")
        else:
            self._say(event.at, f"{trial.id} failed: {event.error}")

    def _show_progress(self, at: float) -> None:
        if self._bottom is not None:
            self._bottom.update(escape(self._progress(at)))
        elif at - self._shown_at >= _PROGRESS_SECONDS:
            self._shown_at = at
            self._say(at, self._progress(at))

    def _instances(self) -> str:
        count = len([r for r in self._books.fleet.alive() if r.launched_at is not None])
        return f"{counted(count, 'instance')} rented"

    def _limits(self, at: float, forecast: str = "") -> list[str]:
        """Return money, time and instances against what is allowed, for the line of progress."""
        limits = self._books.limits
        spent = format_dollars(self._books.spent(at))
        return [
            spent + _of(limits.budget, format_dollars) + forecast,
            format_clock(at) + _of(limits.deadline, format_clock),
            self._instances(),
        ]

    def _best(self) -> str:
        best, name = self._books.best, self._books.metric.name
        return f"best {name} {best.metric:.4f} ({best.trial})" if best else "no result"

    def _progress(self, at: float) -> str:
        """Return the line of progress."""
        raise NotImplementedError

    def _tell_stage(self, at: float) -> None:
        """Tell of a new stage, where there are stages."""

    def _tell_commands(self, at: float, commands: Sequence[Command]) -> None:
        launches = Counter(
            machine_text(c.instance_type, c.market, c.zone)
            for c in commands
            if isinstance(c, Launch)
        )
        if launches:
            asked = ", ".join(f"{count} x {machine}" for machine, count in launches.items())
            self._say(at, f"asks for {asked}")
        self._tell_trials(at, commands)
        for command in commands:
            if isinstance(command, Release):
                self._say(at, f"gives {self._name(command.intent)} back")

    def _tell_trials(self, at: float, commands: Sequence[Command]) -> None:
        """Tell which trials start, and where others go on."""
        fresh: dict[float, list[str]] = {}
        for command in commands:
            if isinstance(command, StartTrial):
                before = self._widths.get(command.trial)
                self._widths[command.trial] = command.width
                if before is None and command.start_epoch == 0:
                    fresh.setdefault(command.width, []).append(command.trial)
                else:
                    self._say(at, self._restart(command, before))
        for width, names in fresh.items():
            self._say(at, f"starts {', '.join(names)} on {gpus_text(width)} each")

    def _restart(self, command: StartTrial, before: float | None) -> str:
        """Return how a trial goes on that trained before, `before` GPUs wide."""
        return restart_text(command, command.width if before is None else before)

    def _name(self, intent: str) -> str:
        return self._books.fleet[intent].instance or f"request {intent}"


class RunScreen(Screen):
    """Tells a run by a plan: its stages, and who is cut between them."""

    def __init__(self, out: Console, policy: RunPolicy) -> None:
        super().__init__(out, policy)
        self._policy = policy
        self._stage = policy.stage  # one that is taken over is somewhere by now
        self._alive = set(policy.members)
        self._plan = policy.stage_plan

    def _progress(self, at: float) -> str:
        policy = self._policy
        training = [t for t in policy.trials.values() if t.status in {"training", "at rung"}]
        epochs = sum(t.epoch for t in policy.trials.values())
        parts = [
            f"stage {policy.stage + 1}/{len(policy.plan.stages)}",
            f"{len(training)} of {len(policy.trials)} trials training, {epochs} epochs done",
            self._best(),
            *self._limits(at, f" (forecast {format_dollars(policy.forecast(at))})"),
        ]
        return " | ".join(parts)

    def _tell_stage(self, at: float) -> None:
        policy = self._policy
        if policy.stage == self._stage:
            if policy.stage_plan is not self._plan:
                self._say(at, f"plans anew: {stage_text(policy.stage_plan)}")
            self._plan = policy.stage_plan
            return
        self._stage, self._plan = policy.stage, policy.stage_plan
        plan, members = policy.stage_plan, counted(len(policy.members), "trial")
        cut = sorted(
            t.id for t in policy.trials.values() if t.id in self._alive - {*policy.members}
        )
        self._alive = set(policy.members)
        self._say(
            at,
            f"stage {self._stage + 1}: {members} to epoch {plan.stage.end_epoch}, "
            f"{stage_text(plan)}; cut: {', '.join(cut) or 'none'}",
        )


def _trial(session: str) -> str:
    return session.rpartition(".")[0]


def _of(limit: float | None, show: Callable[[float], str]) -> str:
    return "" if limit is None else f" of {show(limit)}"


def restart_text(command: StartTrial, before: float) -> str:
    """Return how a trial goes on that was `before` GPUs wide."""
    how = "grows" if command.width > before else "shrinks" if command.width < before else "moves"
    widths = (
        f"from {width_text(before)} to {gpus_text(command.width)}"
        if how != "moves"
        else "to a free place"
    )
    return f"{command.trial} {how} {widths}, from epoch {command.start_epoch}"


def show_report(out: Console, report: Report) -> None:
    """Print what a run did, against what was planned or forecast."""
    run = f"Run {report.job.run}" if report.job.run else "Simulated"
    if report.forecast is not None and report.figures is not None:
        print_sheet(out, elastic_tables.against(run, report.forecast, report.figures))
        print_sheet(out, elastic_tables.rungs(report.rungs, report.policy.metric.name))
    else:
        _show_stages(out, run, report)
    if report.accounting.instances:
        print_sheet(out, accounting_tables.money(report.accounting))
        out.print(accounting_tables.use(report.accounting))
    _show_facts(out, report)
    _show_best(out, report.policy)


def _show_stages(out: Console, run: str, report: Report) -> None:
    table = Table(title=f"{run}: planned / actual", title_justify="left")
    for name in ("stage", "trials", "GPUs each", "instances", "time", "cost"):
        table.add_column(name, justify="right")
    for number, stage in enumerate(report.stages, start=1):
        for row in _stage_rows(number, stage):
            table.add_row(*row)
    planned = report.job.plan.estimate
    table.add_section()
    table.add_row(
        *("total", "", "", ""),
        f"{format_seconds(planned.seconds)} / {format_seconds(report.seconds)}",
        f"{format_dollars(planned.dollars)} / {format_dollars(report.dollars)}",
    )
    out.print(table)


def _stage_rows(number: int, stage: StageReport) -> Iterator[tuple[str, ...]]:
    """Give a row for each group of a stage; time and cost are the stage's."""
    plan = stage.plan
    for place, group in enumerate(plan.groups):
        first = place == 0
        yield (
            str(number) if first else "",
            str(group.trials),
            width_text(group.width),
            group_text(group),
            _against(plan.seconds, stage.seconds, format_seconds) if first else "",
            _against(plan.dollars, stage.dollars, format_dollars) if first else "",
        )


def _against(planned: float, actual: float | None, show: Callable[[float], str]) -> str:
    return f"{show(planned)} / {'-' if actual is None else show(actual)}"


def _show_facts(out: Console, report: Report) -> None:
    if not report.policy.ended:
        out.print(
            "This run goes on, or its controller died: time and cost are those known at its last "
            "record. `cloudtune status` shows what is alive."
        )
    sizes = [str(size) for size in (0, *(size for _, size in report.fleet))]
    if len(sizes) > _MOST_LINES:
        sizes = [*sizes[: _MOST_LINES // 2], "…", *sizes[-_MOST_LINES // 2 :]]
    out.print(f"Fleet over time: {' -> '.join(sizes)}")
    _print_some(out, [_change_text(change) for change in report.width_changes])
    synced = report.synced().items()
    _print_some(out, [_synced_text(trial, *counts) for trial, counts in synced])
    failed = [each for each in report.policy.trials.values() if each.error]
    _print_some(out, [f"{it.id} failed at epoch {it.epoch}: {it.error}" for it in failed])
    if report.job.paced:
        out.print(
            "Emulated cloud: learning is real; seconds follow the instance type's speed curve "
            "(--no-pace turns that off), dollars follow the seconds."
        )


def _print_some(out: Console, lines: Sequence[str]) -> None:
    """Print the lines, but of very many the first ones."""
    for line in lines[:_MOST_LINES]:
        out.print(line, markup=False)
    if len(lines) > _MOST_LINES:
        out.print(f"… and {len(lines) - _MOST_LINES} more like that: `cloudtune report -o json`")


def _change_text(change: WidthChange) -> str:
    return (
        f"{change.trial} went from {width_text(change.before)} to {gpus_text(change.after)}: "
        f"epoch {change.last_epoch}, then epoch {change.next_epoch}"
    )


def _synced_text(trial: str, equal: int, checked: int) -> str:
    return f"{trial}: parameters equal on all ranks after {equal} of {checked} epochs"


def _show_best(out: Console, policy: Books) -> None:
    best = policy.best
    if best is None:
        out.print("No trial reported a result.")
        return
    config = _config_text(policy.trials[best.trial].trial.config)
    out.print(f"Best: {policy.metric.name} {best.metric:.4f}, {best.trial} at epoch {best.epoch}")
    out.print(f"  configuration: {config}", markup=False)
    out.print(f"  checkpoint: {best.checkpoint or 'none: the script saves none'}", markup=False)


def _config_text(config: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in config.items()
    )


def show_instances(out: Console, found: Sequence[Found]) -> None:
    """Print which instances of ours are alive and what they cost per hour."""
    if not found:
        out.print("No instance of ours is alive.")
        return
    table = Table()
    for name in ("run", "instance", "type", "state", "$/h", "looked after"):
        table.add_column(name)
    for one in found:
        it = one.instance
        care = "no: `cloudtune gc` returns it" if one.orphan else "yes" if one.controlled else "?"
        table.add_row(it.run, it.id, it.instance_type, it.state, f"{one.usd_per_hour:.3f}", care)
    out.print(table)
    total = sum(one.usd_per_hour for one in found)
    out.print(f"{counted(len(found), 'instance')}, ${total:.2f} per hour")


def measuring(out: Console) -> Callable[[Event, tuple[Command, ...]], None]:
    """Return a watch that tells a measurement as it goes."""

    def watch(event: Event, commands: tuple[Command, ...]) -> None:
        lines = []
        match event:
            case InstanceLaunched():
                lines.append(f"{event.instance} launched")
            case NodeJoined():
                lines.append("joined the cluster")
            case InstanceGone():
                lines.append("returned")
            case _:
                pass
        starts = [c for c in commands if isinstance(c, StartTrial)]
        if starts:
            lines.append(
                f"trains {counted(len(starts), 'trial')}, {gpus_text(starts[0].width)} each"
            )
        for line in lines:
            out.print(f"{format_clock(event.at):>5}  {line}", markup=False)

    return watch
