"""`cloudtune.run` and `cloudtune.resume`: a run from a script or a notebook."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cloudtune.api import flow
from cloudtune.api.experiments import (
    Source,
    for_renting,
    head_for,
    known,
    refuse_while_loading,
)
from cloudtune.api.plans import Plan
from cloudtune.api.results import Result, load_run
from cloudtune.api.watching import screen_of
from cloudtune.display.live.notebook import NotebookOutput, in_notebook
from cloudtune.engine.ledger import read_entries
from cloudtune.errors import CleanupError, CloudtuneError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.infra.heads.head_runner import ERRORS
from cloudtune.infra.heads.remote_runs import is_remote
from cloudtune.infra.provider import provider_named
from cloudtune.planning.plan_file import (
    TOLERANCE,
    job_of,
    load_plan,
    plan_bytes,
    refuse_moved_prices,
)
from cloudtune.planning.stages import PlanOptions
from cloudtune.private_files import a_guest
from cloudtune.running.resume import Further
from cloudtune.runs import control, home
from cloudtune.runs.job import job_of_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import TypeAlias

    from cloudtune.api.remote import Sent
    from cloudtune.experiment.defaults import Objective
    from cloudtune.infra.provider import HeadOffer
    from cloudtune.model.commands import Command
    from cloudtune.model.events import Event
    from cloudtune.planners.base import InfeasibleError
    from cloudtune.planning.make import Planned
    from cloudtune.planning.stages import Problem
    from cloudtune.policy.run import RunPolicy
    from cloudtune.running.measuring import Measured
    from cloudtune.running.runner import Ended, Watch
    from cloudtune.runs.job import Job

    OnEvent: TypeAlias = Callable[[Event, tuple[Command, ...]], object]

_COLUMNS = 100


@a_guest()
def run(
    experiment: Source | Plan,
    *,
    on_event: OnEvent | None = None,
    progress: bool = True,
    yes: bool = False,
    force: bool = False,
    pace: bool = True,
    profile: str | None = None,
    objective: Objective | None = None,
    planner: str | None = None,
    confidence: float | None = None,
    **given: Any,
) -> Result:
    """Tune: rent, train, cut, grow, give back; return the result once nothing is rented any more.

    `experiment` is a `cloudtune.Plan`, a plan's file, or what `cloudtune.plan` takes, with the same
    options. A script that was never measured is measured first, within the same limits. With
    `progress` lines tell of the run as it goes (in a notebook an output that is renewed).
    `on_event(event, commands)` is called with each event of `cloudtune.model.events` and the
    commands that it led to; an error of it ends no run, and is a RuntimeWarning once that is over.
    `yes` allows renting where the provider asks first (aws). `force` begins though no plan meets
    the limits, which hold; `pace` as for `cloudtune run`.

    An interrupt (Ctrl-C, a notebook's stop button) ends the run in order: everything is given back,
    and the result's `ended` says "interrupted". Call it in the main thread for that: elsewhere no
    signal is heard.

        result = cloudtune.run("experiment.yaml", deadline="2h", budget="$40")
        result.best.config, result.best.checkpoint

    Raises:
        ExperimentError: mistakes in the experiment, each with its line; nothing was launched.
        UsageError: the options don't go together, or it isn't allowed to rent.
        InfeasibleError: no plan meets the limits.
        CleanupError: instances may be left; `cloudtune.load_run` has the result.
        CloudtuneError: the run broke; everything is given back.
    """
    refuse_while_loading()
    home.close()
    onlooker = _Caller(on_event, progress=progress, yes=yes)
    options = PlanOptions(objective, planner, confidence)
    with control.outliving_its_terminal():
        saved = _saved(experiment)
        if saved is None:
            assert not isinstance(experiment, Plan)
            wanted = for_renting(experiment, {**known(given), "objective": objective})
            offer = head_for(wanted)
            if offer is not None:
                words = {**vars(options), "profile": profile}
                return _carried(wanted, offer, onlooker, words, pace=pace, force=force)
            ended = flow.tune(wanted, options, onlooker, profile=profile, pace=pace, force=force)
        else:
            changed = [name for name, value in given.items() if value is not None]
            if changed or profile is not None or options != PlanOptions():
                raise UsageError(
                    "a plan is carried out as it is; give it no options, or plan again"
                )
            offer = head_for(saved.experiment)
            if offer is not None:
                return _carried(saved, offer, onlooker, {}, pace=pace, force=force)
            ended = flow.carry_out(saved, onlooker, pace=pace, force=force)
    return _result(ended, onlooker)


def _saved(experiment: Source | Plan) -> Job | None:
    if isinstance(experiment, Plan):
        return job_of(experiment.planned, 0.0, paced=False)
    if not isinstance(experiment, str | Path):
        return None
    path = Path(experiment)
    saved = load_plan(path)
    if saved is not None:
        refuse_moved_prices(path, saved, TOLERANCE)
    return saved


@a_guest()
def resume(
    name: str | None = None,
    *,
    deadline: str | None = None,
    budget: str | float | None = None,
    trials: str | int | None = None,
    changed_script: bool = False,
    on_event: OnEvent | None = None,
    progress: bool = True,
    yes: bool = False,
) -> Result:
    """Go on with a run whose process died, was interrupted, or met a limit: with its trials.

    `name` is the run's, or an unambiguous beginning of it; without one, the last run. `deadline`
    and `budget` are new limits: "+1h" from now and "+$10" more than are spent, or in all since the
    run began without the sign. `trials`, as "+16" or 16, are tried besides those that the run was
    to try, by its own sampler; a run that has trained all of these goes on with them as well.
    `changed_script` goes on although the script, or a module of its folder, isn't what it was.
    `on_event`, `progress` and `yes` are those of `cloudtune.run`.

    Raises:
        UsageError: there is no such run, it can't go on within these limits, its script has
            changed, it isn't allowed to rent anew, or somebody drives it.
        CloudtuneError: its ledger can't be gone on with.
    """
    refuse_while_loading()
    home.close()
    onlooker = _Caller(on_event, progress=progress, yes=yes)
    further = Further(deadline, budget, trials)
    with control.outliving_its_terminal():
        folder = home.find_run(name)
        if is_remote(folder):
            return _carried_on(folder, onlooker, further)
        ended = flow.go_on(folder, onlooker, further, changed_script=changed_script)
        return _result(ended, onlooker)


def _carried(
    given: Experiment | Job,
    offer: HeadOffer,
    onlooker: _Caller,
    options: Mapping[str, Any],
    *,
    pace: bool,
    force: bool,
) -> Result:
    """Have a head run an experiment, or a saved plan; return the result once it is gone."""
    from cloudtune.api import remote  # noqa: PLC0415  loads ray

    saved = None if isinstance(given, Experiment) else given
    wanted = given if isinstance(given, Experiment) else given.experiment
    onlooker.confirm(wanted, saved)
    flags = {"--force": force, "--no-pace": not pace}
    words = [name for name, said in flags.items() if said]
    words += [f"--{name}={value}" for name, value in options.items() if value is not None]
    plan = None if saved is None else plan_bytes(saved)
    with home.with_module(wanted):
        sent = remote.send(wanted, offer, words, plan)
    onlooker.is_carried(sent)
    return _of_head(sent, remote.look_on(sent, onlooker.watching), onlooker)


def _carried_on(folder: Path, onlooker: _Caller, further: Further) -> Result:
    from cloudtune.api import remote  # noqa: PLC0415  loads ray

    ledger = folder / home.LEDGER
    job = job_of_ledger(ledger)
    offer = head_for(job.experiment)
    if offer is None:
        raise UsageError(
            f"run {folder.name} was carried by a head: go on with it from a machine outside the "
            f"cloud, or with `cloudtune resume {folder.name} --here`"
        )
    onlooker.confirm(job.experiment, job)
    seen = sum(1 for _ in read_entries(ledger))
    words = [f"--{name}={value}" for name, value in vars(further).items() if value is not None]
    sent = remote.resend(folder, job.experiment, offer, words)
    onlooker.is_carried(sent)
    return _of_head(sent, remote.look_on(sent, onlooker.watching, seen=seen), onlooker)


def _of_head(sent: Sent, code: int, onlooker: _Caller) -> Result:
    """Return the result of a run whose head has ended with this exit code.

    Raises:
        CleanupError: instances may be left.
        CloudtuneError: there was no run; the message is the head's own.
    """
    onlooker.tell_of_errors()
    told = (sent.folder / ERRORS).read_text(errors="replace").strip()
    message = told.rpartition("error: ")[2] or f"the head's command ended with exit code {code}"
    if code == CleanupError.exit_code:
        raise CleanupError(message, [])
    if not (sent.folder / home.LEDGER).exists():
        raise (UsageError if code == UsageError.exit_code else CloudtuneError)(message)
    return load_run(sent.folder.name)


def _result(ended: Ended, onlooker: _Caller) -> Result:
    found = Result(flow.concluded(ended))
    onlooker.tell_of_errors()
    if ended.swept.unconfirmed is not None:
        raise ended.swept.unconfirmed
    return found


class _Caller:
    """Who looks on where a program runs: lines on standard output, and a callback."""

    def __init__(self, on_event: OnEvent | None, *, progress: bool, yes: bool) -> None:
        self._on_event = on_event
        self._progress = progress
        self._yes = yes
        self._error: Exception | None = None
        self._output = NotebookOutput() if progress and in_notebook() else None
        # In a notebook rich would make each line an output of its own.
        plain = not sys.stdout.isatty()
        self._out = Console(
            quiet=not progress,
            highlight=False,
            force_jupyter=False,
            width=_COLUMNS if plain else None,
            soft_wrap=plain,
        )

    def confirm(self, experiment: Experiment, job: Job | None) -> None:  # noqa: ARG002
        """Pass where the provider doesn't ask first, or the caller has said yes."""
        whose = provider_named(experiment.cloud.provider).asks_first
        if whose and not self._yes:
            raise UsageError(f"this would rent from {whose}: pass yes=True to allow it")

    def is_carried(self, sent: Sent) -> None:
        """Say by whom."""
        self._out.print(f"carried by {sent.head}, a head; it goes on without this machine")

    def measures(self) -> Watch:
        """Say so; measuring is told of by its events alone."""
        self._out.print("No profile of this script yet: measuring it first.")
        return self._called

    def measured(self, found: Measured, kept: Path) -> None:
        """Say where the profile is kept."""
        self._out.print(f"measured on {found.profile.instance_type}, kept in {kept}", markup=False)

    def has_measured(self, experiment: Experiment, dollars: float) -> None:
        """Say nothing: the result has it."""

    def insists(self) -> None:
        """Say that no plan meets the limits."""
        self._out.print("No plan meets the limits; runs until one of them ends it.")

    def infeasible(self, error: InfeasibleError, problem: Problem) -> None:
        """Say nothing: the error does."""

    def planned(self, planned: Planned) -> None:
        """Say what the plan is, in short."""
        self._out.print(repr(Plan(planned)), markup=False)

    def taken_over(self, saved: Job) -> None:
        """Say nothing: the caller has the plan."""

    def begins(self, job: Job) -> None:
        """Say nothing yet."""

    @contextlib.contextmanager
    def watching(self, job: Job, policy: RunPolicy) -> Iterator[Watch]:
        """Tell of the run as it goes."""
        self._out.print(f"Run {job.run}", markup=False)
        if not self._progress:
            yield self._called
            return
        output = self._output
        screen = screen_of(job, policy, self._out if output is None else output.out)

        def watch(event: Event, commands: tuple[Command, ...]) -> None:
            self._called(event, commands)
            screen.watch(event, commands)
            if output is not None:
                output.show(screen.drawn(event.at))

        with screen:
            yield watch
        if output is not None:
            output.show(screen.drawn(policy.now), at_once=True)

    def _called(self, event: Event, commands: tuple[Command, ...]) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event, commands)
        except Exception as error:  # noqa: BLE001  what looks on ends no run
            self._error = self._error or error

    def tell_of_errors(self) -> None:
        """Warn of the first error of the callback, if there was any."""
        if self._error is not None:
            told = f"on_event failed, first with {type(self._error).__name__}: {self._error}"
            warnings.warn(told, RuntimeWarning, stacklevel=4)
