"""A person's way into the instances of a live run: a command, or a terminal."""

import getpass
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cloudtune.errors import UsageError
from cloudtune.infra.heads.launch import head_tag
from cloudtune.infra.provider import Cloud, Instance, Provider, calls_to, find_provider
from cloudtune.model.commands import StartTrial
from cloudtune.runs import control, home
from cloudtune.runs.job import job_of_ledger
from cloudtune.runs.moved import read_moved_entries
from cloudtune.runs.visits import Visit, note_visit

_HEAD = "head"


def enter(folder: Path, target: str, words: Sequence[str]) -> int:
    """Run a command on an instance of a live run; without words, open a terminal there.

    `target` is an instance, a trial or "head", "" where there is only one instance. The command's
    own input and output are this process's. Returns its exit code.

    Raises:
        UsageError: the run has no such instance now, or its cloud has no way in.
    """
    name, region = control.read_place(folder)
    if not name:
        raise UsageError(f"run {folder.name} has no instances")
    provider = find_provider(name)
    found = _choose(folder, list(_instances(provider, folder.name, region)), target)
    began = time.time()
    code: int | None = None
    try:
        code = provider.enter(found.cloud.endpoint, home.home(), found.instance.id, words)
    finally:
        seconds = round(time.time() - began, 1)
        user = getpass.getuser()
        note_visit(folder, Visit(began, seconds, user, found.instance.id, tuple(words), code))
    return code


class _Found(NamedTuple):
    cloud: Cloud
    instance: Instance


def _instances(provider: Provider, run: str, region: str) -> Iterator[_Found]:
    """Yield the instances of a run that are there now, its head among them."""
    for cloud in provider.clouds_in_use(home.home(), {region}, None):
        if cloud.endpoint.region == region:
            calls = calls_to(cloud.endpoint)
            for each in (run, head_tag(run)):
                for instance in calls.ours(each, ended=False):
                    if instance.state == "running":
                        yield _Found(cloud, instance)


def _choose(folder: Path, found: Sequence[_Found], target: str) -> _Found:
    """Return the instance that a person means.

    Raises:
        UsageError: none is it, or several may be.
    """
    run = folder.name
    if not found:
        raise UsageError(f"run {run} has no instance now; `cloudtune status` lists all")
    nodes = [each for each in found if each.instance.run == run]
    wanted = nodes
    if target == _HEAD:
        wanted = [each for each in found if each.instance.run == head_tag(run)]
    elif target:
        wanted = [each for each in found if target in {each.instance.id, each.instance.intent}]
        if not wanted:
            name = _find_instance(folder, target)
            wanted = [each for each in found if each.instance.id == name]
    if len(wanted) == 1:
        return wanted[0]
    present = ", ".join(each.instance.id for each in nodes)
    if not target:
        raise UsageError(f"name one of the run's instances, or a trial: {present or _HEAD}")
    raise UsageError(f"{target} is no instance and no trial of {run} on one; it has {present}")


def _find_instance(folder: Path, trial: str) -> str:
    """Return the instance on which a trial was started last, by the run's ledger; "" if none."""
    path = folder / home.LEDGER
    if not path.exists():
        return ""
    intent = ""
    for entry in read_moved_entries(path, job_of_ledger(path)):
        for command in entry.commands:
            if isinstance(command, StartTrial) and command.trial == trial:
                intent = command.placement[0].instance
    return intent
