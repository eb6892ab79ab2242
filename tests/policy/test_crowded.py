"""Shares of a GPU at which a trial ran out of memory: learned in the run, and for the next plan."""

from collections.abc import Iterator

import pytest

from cloudtune.engine.ledger import Entry, MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import synthetic_metric
from cloudtune.experiment import Experiment
from cloudtune.forecast.make import make_plan
from cloudtune.forecast.plan_file import make_job
from cloudtune.forecast.problem import build_problem
from cloudtune.model.commands import StartTrial
from cloudtune.model.events import TrialFailed
from cloudtune.model.plans import Limits
from cloudtune.model.trial import EndReason
from tests.builders import profile
from tests.builders.worlds import Cramped

SHARES = {0.25: 9.0, 0.5: 8.5, 1.0: 8.0, 2.0: 5.0, 4.0: 3.0}
TYPE = "g4dn.12xlarge"


def played(**strategy: str) -> tuple[EndReason | None, list[Entry]]:
    """Return how a run ends, and its ledger; a quarter of a T4's memory holds no trial."""
    experiment = Experiment.model_validate(
        {
            "name": "packed",
            "train": "train.py:train",
            "metric": {"name": "score", "mode": "max"},
            "search": {"x": {"uniform": [0, 1]}},
            "trials": 48,
            "epochs": {"min": 1, "max": 9},
            "cloud": {"instances": [TYPE], "market": "on-demand", "max_instances": 2},
            "strategy": strategy,
        }
    )
    problem = build_problem(experiment, [profile(SHARES, name=TYPE)])
    job = make_job(make_plan(problem, Limits(3600.0, 20.0), runs=1), 0.0, paced=False)
    metric = synthetic_metric("max", 7)
    world = Cramped(job.rentables, "score", metric, cramped={TYPE: 0.25})
    policy = job.policy()
    ledger = MemoryLedger()
    run(policy, world, ledger)
    return policy.ending, ledger.entries


def narrow_starts(entries: list[Entry]) -> Iterator[tuple[float, StartTrial]]:
    for entry in entries:
        for command in entry.commands:
            if isinstance(command, StartTrial) and command.width <= 0.25:
                yield entry.event.at, command


def first_failure(entries: list[Entry]) -> float:
    return next(entry.event.at for entry in entries if isinstance(entry.event, TrialFailed))


@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "sha"},
        {"name": "asha", "allocator": "fluid"},
        {"name": "asha", "allocator": "static-fluid:published"},
        {"name": "best"},
    ],
    ids=lambda strategy: "-".join(strategy.values()),
)
def test_no_trial_starts_at_a_share_without_memory(strategy: dict[str, str]) -> None:
    ending, entries = played(**strategy)
    failed_at = first_failure(entries)
    assert ending is not EndReason.FAILED
    assert any(at < failed_at for at, _ in narrow_starts(entries))
    assert not [start.session for at, start in narrow_starts(entries) if at >= failed_at]
