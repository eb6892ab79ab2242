"""The best configurations of an earlier run, for another to begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.errors import UsageError
from cloudtune.experiment.spaces import PlaceError, complete
from cloudtune.model.trial import flat
from cloudtune.runs import home
from cloudtune.strategies.samplers.ranking import scores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.experiment import Experiment
    from cloudtune.experiment.spaces import Space
    from cloudtune.policy.run import RunPolicy

# So many configurations are taken: five good ones of a related run leave 0.80 of the regret of a
# search without them, and five bad ones cost 1.08 (60 cells on five recorded tables, 2026-11-28).
COUNT = 5


def best_configs(run: str, experiment: Experiment) -> list[dict[str, object]]:
    """Return the best configurations of an earlier run that are possible in an experiment.

    A parameter that only the earlier run searched is left out, and one that only the experiment
    searches is drawn. The configurations that `initial` has already are left out too.

    Raises:
        UsageError: no run matches, or none of its configurations fits.
        CloudtuneError: its ledger is damaged, or from another version of cloudtune.
    """
    from cloudtune.runs.report import load  # noqa: PLC0415  it needs all of a run's world

    folder = home.find_run(run)
    policy = load(folder).policy
    most = COUNT
    if experiment.trials is not None:
        most = min(most, experiment.trials - len(experiment.initial))
    taken = [flat(config) for config in experiment.initial]
    fitting: list[dict[str, object]] = []
    for config in _best_first(policy):
        shared = {name: config[name] for name in experiment.space.flat_names if name in config}
        if shared and shared not in taken and _fits(experiment.space, shared):
            taken.append(shared)
            fitting.append(shared)
    if not fitting:
        raise UsageError(
            f"{folder.name} has no trial with a result whose values this search could have; leave "
            "out --like, or name another run"
        )
    return fitting[:most]


def _best_first(policy: RunPolicy) -> list[Mapping[str, object]]:
    """Return the configurations with a result, best first; without those that failed.

    Trials that ended early count as far as their epochs predict the later ones.
    """
    failed = {"failed", "diverged"}
    trials = [t for t in policy.trials.values() if t.history and t.status not in failed]
    scored = scores([trial.history for trial in trials], policy.state.mode)
    order = sorted(range(len(trials)), key=lambda number: -scored[number].value)
    return [trials[number].trial.config for number in order]


def _fits(space: Space, config: Mapping[str, object]) -> bool:
    try:
        complete(space, config, "")
    except PlaceError:
        return False
    return True
