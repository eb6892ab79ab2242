"""Optuna's samplers by ask-and-tell; runs that need none don't load it (see `sampler`).

For Optuna a line is a float from 0 to 1, steps are whole numbers, and labels are categories by
their number in the list, so that any range and any value can be passed on.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, TypeGuard

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from cloudtune.experiment.spaces import ONLY_BRANCH
from cloudtune.strategies.samplers.axes import ListedValues, NumberLine, Steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

    from cloudtune.experiment.spaces import Space
    from cloudtune.model.trial import Mode, TrialId
    from cloudtune.strategies.samplers.axes import Axes, Axis, Config

# Optuna announces each study and gives advice; a run has its own screen.
optuna.logging.set_verbosity(optuna.logging.ERROR)

# Beyond this many, steps are passed as a float from 0 to 1.
_COUNTED = 2**30


class RandomDraws:
    """Configurations from a sampler that learns nothing: "random" or "qmc"."""

    def __init__(self, axes: Axes, kind: str, seed: int) -> None:
        self._axes = axes
        self._distributions = _distributions(axes)
        self._sampler = _sampler(kind, seed)
        self._study = optuna.create_study(sampler=self._sampler)
        self._fresh = kind == "random"

    def ask(self) -> dict[str, object]:
        if self._fresh:  # a study looks through all its trials at each ask; chance needs none
            self._study = optuna.create_study(sampler=self._sampler)
        return _config(self._axes, self._study.ask(self._distributions).params)


class OptunaModel:
    """Proposes configurations from the results of others: "tpe", "gp" or "cma-es".

    A model that replaces another starts from its fit. In a space with branches, TPE is asked only
    for the parameters of the branches that it takes, as in Optuna's define-by-run: it learns about
    a parameter from the trials that have it. The other two model all parameters together and need a
    value for each: for branches not taken they keep their own proposals, and use the middle of the
    range for trials that they didn't propose.
    """

    def __init__(
        self,
        axes: Axes,
        kind: str,
        mode: Mode,
        seed: int,
        before: OptunaModel | None = None,
        *,
        space: Space | None = None,
    ) -> None:
        self._axes = axes
        self._branches = space is not None and bool(space.conditions)
        self._space = space if self._branches and kind == "tpe" else None
        self._imputed = self._branches and kind != "tpe"
        self._distributions = _distributions(axes)
        self.sampler: BaseSampler = _sampler(kind, seed) if before is None else before.sampler
        self._study = optuna.create_study(
            direction="maximize" if mode == "max" else "minimize", sampler=self.sampler
        )
        self._asked: optuna.Trial | None = None
        self._pending: dict[TrialId, int] = {}  # number in the study
        self._attrs: dict[TrialId, dict[str, Any]] = {}  # CMA-ES keeps its state in them
        self._count = 0

    def ask(self, given: Mapping[str, object]) -> dict[str, object]:
        """Return a proposal; in a space with branches, around what is `given`."""
        self._forget()
        self._count += 1
        if self._space is not None:
            self._asked = self._study.ask()
            return self._by_branches(self._asked, self._space, given)
        self._asked = self._study.ask(self._distributions)
        return _config(self._axes, self._asked.params)

    def _by_branches(
        self, asked: optuna.Trial, space: Space, given: Mapping[str, object]
    ) -> dict[str, object]:
        """Return a proposal that has only the parameters of its branches."""
        proposal: dict[str, object] = {}
        for name in space:  # a branching comes before what depends on it
            axis = self._axes.get(name)
            if name in given:
                proposal[name] = given[name]
            elif axis is None and space.is_branching(name):
                proposal[name] = ONLY_BRANCH
            elif axis is not None and space.active(name, proposal):
                proposal[name] = _value(axis, _suggest(asked, name, self._distributions[name]))
        return proposal

    def _forget(self) -> None:
        if self._asked is not None:
            self._study.tell(self._asked, state=TrialState.FAIL)
            self._asked = None

    def begin(self, trial: TrialId, config: Config) -> None:
        """Record that a trial runs, with the last proposal or with another configuration."""
        params = self._params(config)
        attrs = {}
        if self._asked is not None:
            asked = self._study.get_trials(deepcopy=False)[self._asked.number]
            attrs = {k: v for k, v in asked.system_attrs.items() if k.startswith("cma:")}
            if (self._imputed or asked.params.keys() == params.keys()) and _equal(
                asked.params, params
            ):
                self._pending[trial] = self._asked.number
                self._asked = None
        self._forget()
        self._attrs[trial] = attrs
        if trial not in self._pending:
            self._add(params, attrs, state=TrialState.RUNNING)
            self._pending[trial] = self._count - 1

    def learn(self, trial: TrialId, config: Config, value: float) -> None:
        number = self._pending.pop(trial, None)
        if number is not None:
            self._study.tell(number, value)
        else:
            self._add(self._params(config), self._attrs.get(trial, {}), value=value)

    def _params(self, config: Config) -> dict[str, Any]:
        has = self._axes
        if self._branches:
            has = {name: axis for name, axis in self._axes.items() if name in config}
        return _params(has, config)

    def _add(self, params: dict[str, Any], attrs: dict[str, Any], **outcome: Any) -> None:
        if self._imputed:
            params = {name: params.get(name, _middle(axis)) for name, axis in self._axes.items()}
        distributions = {name: self._distributions[name] for name in params}
        trial = create_trial(
            params=params, distributions=distributions, system_attrs=attrs, **outcome
        )
        self._study.add_trial(trial)
        self._count += 1


def _sampler(kind: str, seed: int) -> BaseSampler:
    samplers = optuna.samplers
    options = {"seed": seed, "warn_independent_sampling": False}
    match kind:
        case "random":
            return samplers.RandomSampler(seed)
        case "qmc":
            with warnings.catch_warnings():  # we pin Optuna's version, and test what it does
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                return samplers.QMCSampler(scramble=True, **options)  # type: ignore[arg-type]
        case "tpe":
            return samplers.TPESampler(n_startup_trials=1, seed=seed)
        case "gp":
            return samplers.GPSampler(n_startup_trials=1, **options)  # type: ignore[arg-type]
        case "cma-es":
            return samplers.CmaEsSampler(n_startup_trials=1, **options)  # type: ignore[arg-type]
        case _:
            raise AssertionError(f"no sampler {kind!r}")


def _distributions(axes: Axes) -> dict[str, BaseDistribution]:
    return {name: _distribution(axis) for name, axis in axes.items()}


def _distribution(axis: Axis) -> BaseDistribution:
    if isinstance(axis, ListedValues):
        return CategoricalDistribution(tuple(range(len(axis.values))))
    if _is_integral(axis):
        return IntDistribution(0, axis.count - 1)
    return FloatDistribution(0.0, 1.0)


def _is_integral(axis: Axis) -> TypeGuard[Steps]:
    """Whether a model sees steps as whole numbers, not as a float."""
    return isinstance(axis, Steps) and axis.count <= _COUNTED and not axis.log


def _config(axes: Axes, params: Mapping[str, Any]) -> dict[str, object]:
    return {name: _value(axis, params[name]) for name, axis in axes.items()}


def _value(axis: Axis, param: Any) -> object:
    match axis:
        case ListedValues(values):
            return values[param]
        case Steps() if _is_integral(axis):
            return axis.at(param)
        case NumberLine() | Steps():
            return axis.value(param)


def _params(axes: Axes, config: Config) -> dict[str, Any]:
    return {name: _param(axis, config.get(name)) for name, axis in axes.items()}


def _param(axis: Axis, value: object) -> float | int:
    if isinstance(axis, ListedValues):
        return axis.index(value)
    if _is_integral(axis):
        return axis.index(value)
    return axis.place(value)


def _equal(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return all(math.isclose(left[name], right[name], abs_tol=1e-12) for name in right)


def _suggest(asked: optuna.Trial, name: str, distribution: BaseDistribution) -> Any:
    match distribution:
        case CategoricalDistribution(choices=choices):
            return asked.suggest_categorical(name, choices)
        case IntDistribution(low=low, high=high):
            return asked.suggest_int(name, low, high)
        case _:
            return asked.suggest_float(name, 0.0, 1.0)


def _middle(axis: Axis) -> float | int:
    value = axis.values[0] if isinstance(axis, ListedValues) else axis.value(0.5)
    return _param(axis, value)
