"""Optuna's trial for objectives that cloudtune trains: `suggest_*`, `report`, `should_prune`.

Optuna itself isn't imported. On a worker a suggestion returns the value that the run's sampler
chose; a report ends an epoch, and a trial should be pruned if the policy stops it.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from cloudtune.errors import UsageError
from cloudtune.experiment.search_space import Constant, Grid, parse_domain
from cloudtune.train.calls import current_session, report
from cloudtune.train.session import StopTraining

# The metric that an objective reports, or returns.
METRIC = "value"
# A range of more steps than this is sampled without them.
_LISTED = 1000


class Trial:
    """The stand-in for `optuna.Trial`; `config` has the chosen values.

    A name that `config` lacks, from a branch that no dry call took, is drawn by the trial's seed.
    It is logged, and numbers are reported as the metric param/NAME.
    """

    def __init__(self, config: Mapping[str, Any], number: int = 0, seed: int = 0) -> None:
        self.number = number
        self.params: dict[str, Any] = {}
        self.user_attrs: dict[str, Any] = {}
        self.domains: dict[str, dict[str, list[Any]]] = {}
        self.reports = 0
        self._config = config
        self._seed = seed
        self._drawn: dict[str, float] = {}
        self._stopped = False

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a number between low and high."""
        if low == high:
            domain: dict[str, list[Any]] = {"choice": [low]}
        elif step is not None:
            count = math.floor((high - low) / step + 1e-9) + 1
            if count > _LISTED:
                raise UsageError(f"{count:,} steps of {step} are too many to list; leave step out")
            domain = {"choice": [round(low + number * step, 12) for number in range(count)]}
        else:
            domain = {"loguniform" if log else "uniform": [low, high]}
        return float(self._suggest(name, domain))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """Return a whole number between low and high, both included."""
        if log and low < high:
            return int(self._suggest(name, {"lograndint": [low, high + 1]}))
        if step == 1:
            return int(self._suggest(name, {"randint": [low, high + 1]}))
        return int(self._suggest(name, {"choice": list(range(low, high + 1, step))}))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return one of the choices."""
        scalars = all(isinstance(choice, str | int | float | bool) for choice in choices)
        if scalars:
            return self._suggest(name, {"choice": list(choices)})
        return choices[self._suggest(name, {"choice": list(range(len(choices)))})]

    def set_user_attr(self, key: str, value: Any) -> None:
        """Keep a value for the objective's own use; it isn't recorded."""
        self.user_attrs[key] = value

    def report(self, value: float, step: int) -> None:  # noqa: ARG002  an epoch ends with each
        """End an epoch: wait until the policy lets the trial continue, or stops it."""
        if self._stopped:
            raise StopTraining
        self.reports += 1
        try:
            report({METRIC: float(value), **self._drawn})
        except StopTraining:
            self._stopped = True

    def should_prune(self) -> bool:
        """Return whether the policy has stopped the trial before its last epoch."""
        session = current_session()
        return self._stopped and session.epoch < session.max_epoch

    def _suggest(self, name: str, domain: dict[str, list[Any]]) -> Any:
        key = name.replace("/", ".")
        self.domains[key] = domain
        self.params[name] = self._value(key, domain)
        return self.params[name]

    def _value(self, key: str, domain: dict[str, list[Any]]) -> Any:
        if key in self._config:
            return self._config[key]
        parsed = parse_domain(domain)
        assert not isinstance(parsed, Constant | Grid)
        value = parsed.draw(Random(f"{self._seed}/{key}"))  # noqa: S311  no secret
        sys.stdout.write(f"cloudtune: {key} isn't in the search; {value!r} was drawn\n")
        if isinstance(value, int | float):
            self._drawn[f"param/{key}"] = float(value)
        return value


class _FirstReportError(BaseException):
    """Ends a dry call, past any `except Exception` of the objective."""


class _Recorder(Trial):
    """Records suggestions until the first report.

    Whole numbers take their largest value: with three layers, the units of all are suggested.
    """

    def report(self, value: float, step: int) -> None:  # noqa: ARG002
        self.reports += 1
        raise _FirstReportError

    def should_prune(self) -> bool:
        return False

    def _value(self, key: str, domain: dict[str, list[Any]]) -> Any:  # noqa: ARG002
        ((kind, values),) = domain.items()
        if kind in {"randint", "lograndint"}:
            return values[1] - 1
        if kind == "loguniform":
            return math.sqrt(values[0] * values[1])
        return sum(values) / 2 if kind == "uniform" else values[0]


def discover_space(
    objective: Callable[[Any], object],
) -> tuple[dict[str, dict[str, list[Any]]], bool]:
    """Return an objective's suggestions as a search space, and whether it reports.

    The objective is called here up to its first report, or to its end if it never reports.

    Raises:
        UsageError: it suggests nothing.
    """
    trial = _Recorder({})
    try:
        objective(trial)
    except _FirstReportError:
        pass
    except Exception as error:
        if not _is_pruned(error):
            raise
    if not trial.domains:
        raise UsageError("the objective suggests nothing; call trial.suggest_float and its like")
    return trial.domains, trial.reports > 0


def run_trial(objective: Callable[[Any], object], config: Mapping[str, Any]) -> None:
    """Train a trial of an objective, as a training function.

    Raises:
        UsageError: the objective ended by itself before the last epoch.
    """
    session = current_session()
    digits = "".join(filter(str.isdigit, session.trial_id))
    trial = Trial(config, number=int(digits or 0), seed=session.derived_seed)
    try:
        value = objective(trial)
    except Exception as error:
        if not _is_pruned(error):
            raise
        if session.epoch < session.max_epoch and not trial.should_prune():
            raise UsageError(
                f"the objective pruned itself after {trial.reports} reports; raise TrialPruned "
                "only where trial.should_prune() says so"
            ) from None
        raise StopTraining from None
    if not trial.reports:
        trial.report(float(value), 1)  # type: ignore[arg-type]
    if session.epoch < session.max_epoch and not trial.should_prune():
        raise UsageError(
            f"the objective returned after {trial.reports} reports, and epochs is "
            f"{session.max_epoch}; give the number of its reports: epochs={trial.reports}"
        )


def _is_pruned(error: Exception) -> bool:
    """Whether an error is Optuna's TrialPruned, which needn't be installed."""
    return any(kind.__name__ == "TrialPruned" for kind in type(error).__mro__)
