"""The variables of a run's trials, taken from this machine when the run starts."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from cloudtune import aws_session
from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.experiment.variables import FILE
from cloudtune.infra.node.variables import Variables, read_secret
from cloudtune.infra.provider import find_provider
from cloudtune.infra.sent_files import IGNORE_FILE, sent_files
from cloudtune.model.providers import PROVIDERS

# On a head: the values that its user's machine has sent, as JSON by name.
CARRIED_VARIABLE = "CLOUDTUNE_VARIABLES"
# Linux limits a variable to 128 KiB, and all that a process starts with to some MiB.
_LONGEST_BYTES = 32 * 1024
_MOST_BYTES = 96 * 1024


def take(experiment: Experiment) -> Variables:
    """Return the variables of an experiment's trials, for the workers of its run.

    On AWS the instances read the secrets that AWS keeps, by their role. Elsewhere this machine
    does, with its own credentials.

    Raises:
        UsageError: a variable or a secret is missing; the message names it.
    """
    own = own_values(experiment)
    literal = {name: text for name, text in experiment.env.items() if text is not None}
    values = {**literal, **own}
    in_aws = {name: it for name, it in experiment.secret_sources.items() if it.is_in_aws}
    region = experiment.cloud.region
    if not find_provider(experiment.cloud.provider).has_roles:
        region = aws_session.region()
        values |= {name: read_secret(name, it, region) for name, it in in_aws.items()}
    _refuse_long(values)
    nodes_read = {name: it for name, it in in_aws.items() if name not in values}
    private = frozenset([*own, *in_aws])
    return Variables(values, nodes_read, region, private)


def own_values(experiment: Experiment) -> dict[str, str]:
    """Return the values of this machine: of its environment, and of its files of secrets.

    Raises:
        UsageError: one is missing, or would be sent with the script; the message names it.
    """
    names = [name for name, text in experiment.env.items() if text is None]
    files = {name: it.name for name, it in experiment.secret_sources.items() if it.store == FILE}
    carried = os.environ.get(CARRIED_VARIABLE)
    if carried is not None:
        return _carried_values(carried, [*names, *files])
    missing = [name for name in names if name not in os.environ]
    if missing:
        are = "isn't" if len(missing) == 1 else "aren't"
        raise UsageError(
            f"env: {', '.join(missing)} {are} set in this environment: `export {missing[0]}=…`, "
            "or leave it out of the experiment; nothing was launched"
        )
    values = {name: os.environ[name] for name in names}
    for name, path in files.items():
        values[name] = _read_file(name, experiment.directory / Path(path).expanduser())
    _refuse_sent(experiment, files)
    _refuse_long(values)
    return values


def _carried_values(carried: str, names: list[str]) -> dict[str, str]:
    sent: Mapping[str, str] = json.loads(carried)
    missing = [name for name in names if name not in sent]
    if missing:
        raise UsageError(f"env: the head wasn't sent {', '.join(missing)}; nothing was launched")
    return {name: sent[name] for name in names}


def _read_file(name: str, path: Path) -> str:
    """Return the text of a file, without the end of its last line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or "it isn't UTF-8 text"
        raise UsageError(
            f"secrets.{name}: {path} can't be read: {problem}; nothing was launched"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def _refuse_sent(experiment: Experiment, files: Mapping[str, str]) -> None:
    """Refuse a file with a secret in the folder that is sent to other machines."""
    if not files or PROVIDERS[experiment.cloud.provider].here:
        return
    sent = {path.resolve() for path in sent_files(experiment.train_folder)}
    for name, path in files.items():
        if (experiment.directory / Path(path).expanduser()).resolve() in sent:
            raise UsageError(
                f"secrets.{name}: {path} is in the folder that is sent to instances: name it in "
                f"{IGNORE_FILE}, or move it; nothing was launched"
            )


def _refuse_long(values: Mapping[str, str]) -> None:
    for message in _too_long(values):
        raise UsageError(f"{message}; nothing was launched")


def _too_long(values: Mapping[str, str]) -> Iterator[str]:
    sizes = {name: len(text.encode("utf-8", "replace")) for name, text in values.items()}
    for name, size in sizes.items():
        if size > _LONGEST_BYTES:
            yield f"variable {name} has {size:,} bytes, and may have {_LONGEST_BYTES:,}"
    if sum(sizes.values()) > _MOST_BYTES:
        yield f"the variables have {sum(sizes.values()):,} bytes, and may have {_MOST_BYTES:,}"
