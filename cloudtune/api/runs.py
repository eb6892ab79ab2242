"""`cloudtune.run` and `cloudtune.resume`: runs from scripts and notebooks."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console

from cloudtune.api import experiments, flow, remote
from cloudtune.api.plans import Plan
from cloudtune.api.regions import after, ranked
from cloudtune.api.remote import Sent
from cloudtune.api.results import Result, load_run
from cloudtune.api.watching import Onlooker, screen_of
from cloudtune.display.live.notebook import NotebookOutput, in_notebook
from cloudtune.engine.ledger import read_entries
from cloudtune.errors import CleanupError, CloudtuneError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.experiment.defaults import Objective
from cloudtune.infra.heads.head_runner import ERRORS
from cloudtune.infra.heads.remote_runs import is_remote
from cloudtune.infra.provider import HeadOffer, provider_named
from cloudtune.model.commands import Command
from cloudtune.model.events import Event
from cloudtune.model.plans import PRICE_TOLERANCE
from cloudtune.planning import plan_file
from cloudtune.planning.make import Planned
from cloudtune.planning.stages import PlanOptions
from cloudtune.policy.run import RunPolicy
from cloudtune.private_files import a_guest
from cloudtune.running.measuring import Measured
from cloudtune.running.resume import Further
from cloudtune.running.runner import Ended, Watch
from cloudtune.runs import control, home
from cloudtune.runs.job import Job, job_of_ledger

OnEvent: TypeAlias = Callable[[Event, tuple[Command, ...]], object]

_COLUMNS = 100


class _Caller(Onlooker):
    """Reports a run to a program: lines on standard output, and a callback."""

    def __init__(self, on_event: OnEvent | None, *, progress: bool, yes: bool) -> None:
        self._on_event = on_event
        self._progress = progress
        self._yes = yes
        self._error: Exception | None = None
        self._output = NotebookOutput() if progress and in_notebook() else None
        # In a notebook, rich would create one output per line.
        plain = not sys.stdout.isatty()
        self._out = Console(
            quiet=not progress,
            highlight=False,
            force_jupyter=False,
            width=_COLUMNS if plain else None,
            soft_wrap=plain,
        )

    def confirm(self, experiment: Experiment, job: Job | None) -> None:  # noqa: ARG002
        """Return if the provider doesn't ask first, or the caller passed `yes`."""
        whose = provider_named(experiment.cloud.provider).asks_first
        if whose and not self._yes:
            raise UsageError(f"renting from {whose} needs confirmation: pass yes=True")

    def is_carried(self, sent: Sent) -> None:
        self._out.print(f"head {sent.head} controls the run; it continues without this machine")

    def measures(self) -> Watch:
        """Announce the measurement, which is reported by its events only."""
        self._out.print("This script has no profile yet: measuring it first.")
        return self._called

    def measured(self, measured: Measured, kept: Path) -> None:
        self._out.print(
            f"measured on {measured.profile.instance_type}, saved to {kept}", markup=False
        )

    def insists(self) -> None:
        self._out.print("No plan meets the limits; the run continues until it reaches one.")

    def planned(self, planned: Planned) -> None:
        self._out.print(repr(Plan(planned)), markup=False)

    @contextlib.contextmanager
    def watching(self, job: Job, policy: RunPolicy) -> Iterator[Watch]:
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
        except Exception as error:  # noqa: BLE001  a callback must not end the run
            self._error = self._error or error

    def tell_of_errors(self) -> None:
        if self._error is not None:
            text = f"on_event failed, first with {type(self._error).__name__}: {self._error}"
            warnings.warn(text, RuntimeWarning, stacklevel=4)


@a_guest()
def run(
    experiment: experiments.Source | Plan,
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
    """Tune: rent instances, train and select trials; return the result after returning them all.

    `experiment` is a `cloudtune.Plan`, a plan's file, or an experiment as for `cloudtune.plan`,
    with the same options. A script without a profile is measured first, within the same limits.
    `progress` prints the run live (in a notebook, as one output that is updated).
    `on_event(event, commands)` is called with each event of `cloudtune.model.events` and the
    resulting commands; its errors don't end the run, but cause a RuntimeWarning afterwards.
    `yes` allows renting from providers that ask first (aws). `force` starts the run even if no
    plan meets the limits (still enforced); `pace` is as for `cloudtune run`.

    An interrupt (Ctrl-C, a notebook's stop button) stops the run gracefully: it returns all
    instances, and the result's `ended` is "interrupted". This works only in the main thread, which
    receives the signal.

        result = cloudtune.run("experiment.yaml", deadline="2h", budget="$40")
        result.best.config, result.best.checkpoint

    Raises:
        ExperimentError: mistakes in the experiment, each with its line; nothing was launched.
        UsageError: the options can't be combined, or renting isn't allowed.
        InfeasibleError: no plan meets the limits.
        CleanupError: instances may be left; `cloudtune.load_run` has the result.
        CloudtuneError: the run failed; all its instances are returned.
    """
    experiments.refuse_while_loading()
    home.close()
    onlooker = _Caller(on_event, progress=progress, yes=yes)
    options = PlanOptions(objective, planner, confidence)
    with control.outliving_its_terminal():
        saved = _saved(experiment)
        if saved is None:
            assert not isinstance(experiment, Plan)
            asked = {**experiments.checked_options(given), "objective": objective}
            wanted, *elsewhere = ranked(
                experiments.load_experiment(experiment, asked), profile, options
            )
            offer = experiments.head_for(wanted)
            words = {**vars(options), "profile": profile}
            if offer is not None:
                result = _carried(wanted, offer, onlooker, words, pace=pace, force=force)
                while elsewhere and (following := after(result.report, elsewhere.pop(0))):
                    offer = experiments.head_for(following, force=True)
                    assert offer is not None
                    result = _carried(following, offer, onlooker, words, pace=pace, force=force)
                return result
            ended = flow.tune(wanted, options, onlooker, profile=profile, pace=pace, force=force)
        else:
            changed = [name for name, value in given.items() if value is not None]
            if changed or profile is not None or options != PlanOptions():
                raise UsageError("a plan can't be changed; leave out the options, or plan again")
            offer = experiments.head_for(saved.experiment)
            if offer is not None:
                return _carried(saved, offer, onlooker, {}, pace=pace, force=force)
            ended = flow.carry_out(saved, onlooker, pace=pace, force=force)
    return _result(ended, onlooker)


def _saved(experiment: experiments.Source | Plan) -> Job | None:
    if isinstance(experiment, Plan):
        return plan_file.job_of(experiment.planned, 0.0, paced=False)
    if not isinstance(experiment, str | Path):
        return None
    path = Path(experiment)
    saved = plan_file.load_plan(path)
    if saved is not None:
        plan_file.refuse_moved_prices(path, saved, PRICE_TOLERANCE)
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
    """Resume a run that died, was interrupted, or reached a limit.

    `name` is the run's, or an unambiguous prefix of it; by default, the last run. `deadline` and
    `budget` are new limits: "+1h" from now and "+$10" more than spent so far; without the sign, in
    total since the run began. `trials`, as "+16" or 16, adds trials from the run's own sampler,
    also to a run that has completed all of its trials. `changed_script` resumes although the
    script, or a module in its folder, has changed. `on_event`, `progress` and `yes` are those of
    `cloudtune.run`.

    Raises:
        UsageError: there is no such run, it can't continue within these limits, its script has
            changed, renting isn't allowed, or it is already running.
        CloudtuneError: its ledger can't be resumed.
    """
    experiments.refuse_while_loading()
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
    """Run an experiment or a saved plan on a head; return the result once it has terminated."""
    saved = None if isinstance(given, Experiment) else given
    wanted = given if isinstance(given, Experiment) else given.experiment
    onlooker.confirm(wanted, saved)
    flags = {"--force": force, "--no-pace": not pace}
    words = [name for name, is_set in flags.items() if is_set]
    words += experiments.given_words(options)
    plan = None if saved is None else plan_file.plan_bytes(saved)
    with home.with_module(wanted):
        sent = remote.send(wanted, offer, words, plan)
    onlooker.is_carried(sent)
    return _of_head(sent, remote.look_on(sent, onlooker.watching), onlooker)


def _carried_on(folder: Path, onlooker: _Caller, further: Further) -> Result:
    ledger = folder / home.LEDGER
    job = job_of_ledger(ledger)
    offer = experiments.head_for(job.experiment, force=True)
    assert offer is not None
    onlooker.confirm(job.experiment, job)
    seen = sum(1 for _ in read_entries(ledger))
    sent = remote.resend(folder, job.experiment, offer, experiments.given_words(vars(further)))
    onlooker.is_carried(sent)
    return _of_head(sent, remote.look_on(sent, onlooker.watching, seen=seen), onlooker)


def _of_head(sent: Sent, code: int, onlooker: _Caller) -> Result:
    """Return the result of a run whose head exited with `code`.

    Raises:
        CleanupError: instances may be left.
        CloudtuneError: the run didn't start; the message is the head's own.
    """
    onlooker.tell_of_errors()
    errors = (sent.folder / ERRORS).read_text(errors="replace").strip()
    message = errors.rpartition("error: ")[2] or f"the head's command ended with exit code {code}"
    if code == CleanupError.exit_code:
        raise CleanupError(message, [])
    if not (sent.folder / home.LEDGER).exists():
        raise (UsageError if code == UsageError.exit_code else CloudtuneError)(message)
    return load_run(sent.folder.name)


def _result(ended: Ended, onlooker: _Caller) -> Result:
    result = Result(flow.concluded(ended))
    onlooker.tell_of_errors()
    if ended.swept.unconfirmed is not None:
        raise ended.swept.unconfirmed
    return result
