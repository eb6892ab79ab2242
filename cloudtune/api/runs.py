"""`cloudtune.run` and `cloudtune.resume`: runs from scripts, notebooks and the command line."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudtune.api import experiments
from cloudtune.api.live_logs import make_live_logs
from cloudtune.api.plans import Plan
from cloudtune.api.reporters import CallbackReporter, OnEvent, ProgressReporter
from cloudtune.api.results import Result
from cloudtune.api.scripts import is_script
from cloudtune.errors import UsageError
from cloudtune.experiment.defaults import Objective
from cloudtune.forecast import plan_file
from cloudtune.forecast.staged_plans import PlanOptions
from cloudtune.lifecycle import start
from cloudtune.lifecycle.reporter import Reporter, Reporters
from cloudtune.lifecycle.resume import Further
from cloudtune.lifecycle.start import RunSettings
from cloudtune.model.plans import PRICE_TOLERANCE
from cloudtune.private_files import a_guest
from cloudtune.runs import control, home
from cloudtune.runs.job import Job, job_of_ledger


@a_guest()
def run(
    experiment: experiments.Source | Plan,
    *,
    reporter: Reporter | None = None,
    on_event: OnEvent | None = None,
    progress: bool = True,
    yes: bool = False,
    force: bool = False,
    pace: bool = True,
    here: bool | None = None,
    price_tolerance: float = PRICE_TOLERANCE,
    profile: str | None = None,
    objective: Objective | None = None,
    planner: str | None = None,
    confidence: float | None = None,
    **given: Any,
) -> Result:
    """Tune: rent instances, train and select trials; return the result after returning them all.

    `experiment` is a `cloudtune.Plan`, a plan's file, or an experiment as for `cloudtune.plan`,
    with the same options. A strategy that plans stages measures a script that has never run first,
    within the same limits.

    `progress` prints the run live (in a notebook, as one output that is updated). `reporter`, a
    `cloudtune.Reporter`, reports it instead. `on_event(event, commands)` is called with each event
    of `cloudtune.model.events` and the resulting commands. Errors of either during the run don't
    end it, but cause a RuntimeWarning afterwards.

    `yes` allows renting from providers that ask first (aws). `force` starts the run even if no
    plan meets the limits (still enforced). `pace` is as for `cloudtune run`. `here` is whether this
    machine controls the run, rather than a head (aws); by default, if it can. A saved plan is
    refused if prices have changed by more than the fraction `price_tolerance`.

    An interrupt (Ctrl-C, a notebook's stop button) stops a run that this machine controls
    gracefully: it returns all instances, and the result's `ended` is "interrupted". A run on a head
    continues, and bills: DetachedError says how to follow it and how to stop it. Interrupts arrive
    in the main thread only.

        result = cloudtune.run("experiment.yaml", deadline="2h", budget="$40")
        result.best.config, result.best.checkpoint

    Raises:
        ExperimentError: mistakes in the experiment, each with its line; nothing was launched.
        UsageError: the options can't be combined, or renting isn't allowed.
        InfeasibleError: no plan meets the limits.
        DetachedError: an interrupt, and the run continues on its head.
        CleanupError: instances may be left; `cloudtune.load_run` has the result.
        CloudtuneError: the run failed; all its instances are returned.
    """
    experiments.refuse_while_loading()
    home.close()
    reporters = _reporters(reporter, on_event, progress=progress, yes=yes)
    options = PlanOptions(objective, planner, confidence)
    settings = RunSettings(options, profile, pace=pace, force=force, here=here)
    try:
        with control.outliving_its_terminal():
            saved = _saved_plan(experiment, price_tolerance)
            if saved is not None:
                _refuse_overrides({**given, **vars(options), "profile": profile})
                reporters.add(make_live_logs(saved.experiment.log_to))
                return Result(start.run_saved_plan(saved, settings, reporters))
            assert not isinstance(experiment, Plan)
            overrides = {**experiments.checked_options(given), "objective": objective}
            loaded = experiments.load_experiment(experiment, overrides)
            reporters.add(make_live_logs(loaded.log_to))
            return Result(start.run_experiment(loaded, settings, reporters))
    finally:
        reporters.warn()


def _saved_plan(experiment: experiments.Source | Plan, price_tolerance: float) -> Job | None:
    """Return the job of a plan; None if it is an experiment.

    Raises:
        UsageError: the file is damaged, its script or prices have changed.
    """
    if math.isnan(price_tolerance):
        raise UsageError("--price-tolerance must be a number such as 0.05, not nan")
    if isinstance(experiment, Plan):
        return plan_file.make_job(experiment.planned, 0.0, paced=False)
    if not isinstance(experiment, str | Path) or is_script(Path(experiment)):
        return None
    path = Path(experiment)
    saved = plan_file.load_plan(path)
    if saved is not None:
        plan_file.refuse_moved_prices(path, saved, price_tolerance)
    return saved


def _refuse_overrides(given: Mapping[str, Any]) -> None:
    changed = [name for name, value in given.items() if value not in (None, ())]
    if changed:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise UsageError(f"a plan can't be changed; leave out {names}, or plan again")


@a_guest()
def resume(
    name: str | None = None,
    *,
    deadline: str | None = None,
    budget: str | float | None = None,
    trials: str | int | None = None,
    changed_script: bool = False,
    reporter: Reporter | None = None,
    on_event: OnEvent | None = None,
    progress: bool = True,
    yes: bool = False,
    here: bool | None = None,
) -> Result:
    """Resume a run that died, was interrupted, or reached a limit.

    `name` is the run's, or an unambiguous prefix of it; by default, the last run. `deadline` and
    `budget` are new limits: "+1h" from now and "+$10" more than spent so far; without the sign, in
    total since the run began. `trials`, as "+16" or 16, adds trials from the run's own sampler,
    also to a run that has completed all of its trials. `changed_script` resumes although the
    script, or a module in its folder, has changed. `here` lets this machine control a run that a
    head controlled. The others are those of `cloudtune.run`; so is what an interrupt does.

    Raises:
        UsageError: there is no such run, it can't continue within these limits, its script has
            changed, renting isn't allowed, or it is already running.
        DetachedError: an interrupt, and the run continues on its head.
        CloudtuneError: its ledger can't be resumed.
    """
    experiments.refuse_while_loading()
    home.close()
    reporters = _reporters(reporter, on_event, progress=progress, yes=yes)
    further = Further(deadline, budget, trials)
    try:
        with control.outliving_its_terminal():
            folder = home.find_run(name)
            logged = job_of_ledger(folder / home.LEDGER).experiment.log_to
            reporters.add(make_live_logs(logged))
            report = start.resume_run(
                folder, further, reporters, changed_script=changed_script, here=here
            )
            return Result(report)
    finally:
        reporters.warn()


def _reporters(
    reporter: Reporter | None, on_event: OnEvent | None, *, progress: bool, yes: bool
) -> Reporters:
    """Return the reporters of a run; the first one confirms."""
    chosen = reporter or (ProgressReporter() if progress else Reporter())
    callbacks = () if on_event is None else (CallbackReporter(on_event),)
    return Reporters(chosen, *callbacks, yes=yes)
