"""Everything that cloudtune raises on purpose, and the exit code that each becomes.

CloudtuneError                1  something broke; the message says what and what to do
├── UsageError                2  a person's mistake; nothing was launched
│   └── ExperimentError       2  … in an experiment file, with its line
├── InfeasibleError           3  no plan meets the limits (planners/base.py); carries the nearest
├── NoCapacityError           6  the cloud has no such instance now
├── CleanupError              7  instances may still be running; carries their ids
└── UnsavedError              8  the storage didn't take the best model

A run that ends early without an error has its own codes: 4 (budget), 5 (deadline) and
130 (interrupted); see `cloudtune.model.trial.EndReason`. Expected trouble during a run (a lost
node, a failed launch, a crashed trial) is an event, never an exception.
"""

import difflib
import reprlib
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import ClassVar


class CloudtuneError(Exception):
    """The root of every error that cloudtune raises on purpose."""

    exit_code: ClassVar[int] = 1


class UsageError(CloudtuneError):
    """A person's mistake: the message names it and says what to do; nothing was launched."""

    exit_code = 2


class ExperimentError(UsageError):
    """A mistake in an experiment; the message starts with `file:line:` where there is a file."""


class NoCapacityError(CloudtuneError):
    """The cloud could not provide an instance that the run can't do without."""

    exit_code = 6


class HurriedError(CloudtuneError):
    """A person has interrupted a run twice: everything is returned now, without waiting."""

    exit_code = 130


class UnsavedError(CloudtuneError):
    """The best model of a run couldn't be saved in the storage."""

    exit_code = 8


class DetachedError(CloudtuneError):
    """An interrupt ended the following of a run that a head controls: it continues, and bills.

    `run` is its name, for `cloudtune.load_run` and `cloudtune watch`.
    """

    exit_code = 9

    def __init__(self, message: str, run: str) -> None:
        super().__init__(message)
        self.run = run


class CleanupError(CloudtuneError):
    """Instances of ours may still be running and billing; `instance_ids` names them."""

    exit_code = 7

    def __init__(self, message: str, instance_ids: Sequence[str]) -> None:
        super().__init__(message)
        self.instance_ids = tuple(instance_ids)


def need(extra: str, what: str, *modules: str) -> None:
    """Check that the modules of an extra of the package are installed; `what` needs them.

    Raises:
        UsageError: one isn't installed.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{what} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
            f"not installed: pip install 'cloudtune[{extra}]'"
        )


# Python refuses to print a whole number of more than 4300 digits.
_PRINTABLE_BITS = 256


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxlist = self.maxtuple = self.maxdict = 4
        self.maxstring = self.maxother = 60

    def repr_int(self, x: int, level: int) -> str:
        """Return the digits, or only the size of a number too long to read."""
        if x.bit_length() > _PRINTABLE_BITS:
            return f"a whole number of {x.bit_length()} bits"
        return super().repr_int(x, level)

    def repr_bool(self, x: bool, level: int) -> str:  # noqa: ARG002
        """Return the word as YAML writes it."""
        return "true" if x else "false"

    def repr_NoneType(self, x: None, level: int) -> str:  # noqa: ARG002, N802
        """Return the word as YAML writes it."""
        return "null"


_SHORT = _Short()


def quote(value: object) -> str:
    """Return a value on one line, short enough for a message."""
    return _SHORT.repr(value).replace("\n", " ")


def nearest(name: object, allowed: Iterable[str]) -> str:
    """Return " Did you mean 'x'?", or "" if no allowed name is near."""
    if not isinstance(name, str):
        return ""
    spelled = {name.lower(): name for name in allowed}
    matches = difflib.get_close_matches(name[:100].lower(), spelled, n=1)
    return f" Did you mean {spelled[matches[0]]!r}?" if matches else ""


def allowed_names(name: object, allowed: Iterable[str]) -> str:
    """Return "allowed: a, b, c." with a suggestion, if a name is near."""
    names = tuple(allowed)
    return f"allowed: {', '.join(names)}.{nearest(name, names)}"
