"""Where a run takes place if neither its file nor an option names a provider."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from cloudtune.aws_session import LOG_IN, has_profiles
from cloudtune.cli.options import at_terminal
from cloudtune.errors import UsageError
from cloudtune.model.providers import PROVIDERS
from cloudtune.model.text import limit_texts
from cloudtune.model.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cloudtune.experiment import Experiment

# A first look at the emulated cloud takes no longer, whatever the deadline.
_FIRST_LOOK_SECONDS = 600.0
_NAME_ANOTHER = "name another by --provider local or aws (cloudtune docs local, cloudtune docs aws)"


@dataclass(frozen=True)
class _Place:
    """A place to run in: a line of the question, and the options that take it."""

    text: str
    options: Mapping[str, str]
    note: str = ""


def choose_place(source: Path, given: dict[str, Any], *, asks: bool, quiet: bool) -> dict[str, Any]:
    """Return the options of a run with a place to run in.

    If file and options name no provider, a person at a terminal is asked, unless not `asks`.
    Otherwise it is the default provider, which is said unless `quiet`.

    Raises:
        UsageError: the answer is AWS, which isn't set up here.
        click.Abort: the person left the question.
    """
    from cloudtune.api.experiments import load_experiment
    from cloudtune.forecast.plan_file import load_plan

    if given.get("provider") or load_plan(source) is not None:
        return given
    experiment = load_experiment(source, given)
    if "provider" in experiment.cloud.model_fields_set:
        return given
    if asks and at_terminal():
        return {**given, **_ask(experiment)}
    if not quiet:
        usual = next(iter(PROVIDERS))
        click.echo(f"No provider is named, so this run is {usual} here; {_NAME_ANOTHER}", err=True)
    return given


def _ask(experiment: Experiment) -> Mapping[str, str]:
    """Ask a person where to run; return the options that the answer stands for."""
    places = [_emulated(experiment), _local(experiment), _aws()]
    click.echo("Where should it run? No provider is named.", err=True)
    for number, place in enumerate(places, start=1):
        click.echo(f"  {number}  {place.text}", err=True)
    number = click.prompt("Number", type=click.IntRange(1, len(places)), default=1, err=True)
    place = places[number - 1]
    if not place.options:
        raise UsageError(place.note)
    if place.note:
        click.echo(place.note, err=True)
    return place.options


def _emulated(experiment: Experiment) -> _Place:
    """Return the emulated cloud; a search that may take hours takes ten minutes at first."""
    options = {"provider": "emulated"}
    limits = experiment.limits
    what = "emulated: rented machines as on AWS, only here, and nothing is paid"
    if limits.deadline is None:
        return _Place(what, options)
    # A number of trials that is to be done by the deadline couldn't be cut.
    is_search = limits.budget is not None and experiment.trials is None
    if not is_search or limits.deadline <= _FIRST_LOOK_SECONDS:
        return _Place(f"{what}; {format_seconds(limits.deadline)}", options)
    assert limits.budget is not None
    budget = limits.budget * _FIRST_LOOK_SECONDS / limits.deadline
    options |= {"deadline": f"{_FIRST_LOOK_SECONDS:.0f}s", "budget": f"${budget:.6g}"}
    part = " and ".join(limit_texts(_FIRST_LOOK_SECONDS, budget))
    whole = " and ".join(limit_texts(limits.deadline, limits.budget))
    note = f"A first look: {part} of the {whole}; --provider emulated takes all of it."
    return _Place(f"{what}; a first look of {format_seconds(_FIRST_LOOK_SECONDS)}", options, note)


def _local(experiment: Experiment) -> _Place:
    from cloudtune.infra.node.this_machine import this_machine

    try:
        machine = this_machine()
    except UsageError as error:
        return _Place(f"this machine, once it can: {error}", {}, str(error))
    has = f"{machine.gpus} x {machine.gpu}" if machine.gpu_maker else f"{machine.vcpus} CPU cores"
    limits = experiment.limits
    text = f"this machine: {has}, nothing is paid"
    if limits.deadline is not None:
        text += f"; up to {format_seconds(limits.deadline)}"
    return _Place(f"{text} (--provider local)", {"provider": "local"})


def _aws() -> _Place:
    """Return AWS: to run there at once needs credentials, which aren't tried here."""
    if has_profiles() or "AWS_ACCESS_KEY_ID" in os.environ:
        text = "AWS, by this machine's credentials; you see the plan and are asked before it rents"
        return _Place(f"{text} (--provider aws)", {"provider": "aws"})
    return _Place(
        "AWS, after two commands, which this prints (--provider aws)",
        {},
        f"AWS needs credentials: {LOG_IN}; then `cloudtune aws setup --region us-east-1`, once, "
        "and this command again with --provider aws (cloudtune docs aws)",
    )
