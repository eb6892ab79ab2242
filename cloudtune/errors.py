"""Everything that cloudtune raises on purpose, and the exit code that each becomes.

CloudtuneError                1  something broke; the message says what and what to do
├── UsageError                2  a person's mistake; nothing was launched
│   └── ExperimentError       2  … in an experiment file, with its line
├── InfeasibleError           3  no plan meets the limits; carries the nearest plans there are
├── NoCapacityError           6  the cloud has no such instance now
└── CleanupError              7  instances may still be running; carries their ids

A run that ends early without an error has its own codes: 4 (budget), 5 (deadline) and
130 (interrupted); see `cloudtune.trial.EndReason`. Expected trouble during a run (a lost node,
a failed launch, a crashed trial) is an event, never an exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.plan import Plan


class CloudtuneError(Exception):
    """The root of every error that cloudtune raises on purpose."""

    exit_code: ClassVar[int] = 1


class UsageError(CloudtuneError):
    """A person's mistake: the message names it and says what to do; nothing was launched."""

    exit_code = 2


class ExperimentError(UsageError):
    """A mistake in an experiment; the message starts with `file:line:` where there is a file."""


class InfeasibleError(CloudtuneError):
    """No plan meets the limits.

    `fastest` and `cheapest` are the two ends of what can be had, or None where nothing can;
    `nearest` is the plan that comes closest to both limits, where somebody looked for it.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        fastest: Plan | None,
        cheapest: Plan | None,
        nearest: Plan | None = None,
    ) -> None:
        super().__init__(message)
        self.fastest = fastest
        self.cheapest = cheapest
        self.nearest = nearest


class NoCapacityError(CloudtuneError):
    """The cloud could not provide an instance that the run can't do without."""

    exit_code = 6


class CleanupError(CloudtuneError):
    """Instances of ours may still be running and billing; `instance_ids` names them."""

    exit_code = 7

    def __init__(self, message: str, instance_ids: Sequence[str]) -> None:
        super().__init__(message)
        self.instance_ids = tuple(instance_ids)
