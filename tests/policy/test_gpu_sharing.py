"""Trials come to share GPUs while a run trains, if their memory fits and that pays."""

import pytest

from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import synthetic_metric
from cloudtune.experiment import Experiment
from cloudtune.forecast.make import make_plan
from cloudtune.forecast.plan_file import make_job
from cloudtune.forecast.problem import build_problem
from cloudtune.model.commands import StartTrial
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.trial import Width
from tests.builders import profile
from tests.builders.worlds import Cramped

TYPE = "g4dn.12xlarge"  # four T4 of 16,384 MiB
WHOLE = {1.0: 8.0, 2.0: 5.0, 4.0: 3.0}
# Seconds of an epoch of each of 2, 4 and 8 trials on a GPU.
PAYS = {1 / 8: 12.0, 1 / 4: 9.5, 1 / 2: 8.5}
DOES_NOT_PAY = {1 / 8: 64.0, 1 / 4: 32.0, 1 / 2: 16.0}


def widths_of_starts(
    shares: dict[Width, float], mib: float | None, **fields: object
) -> list[Width]:
    """Return the widths of a run's starts, in order, on GPUs where sharing takes so long."""
    experiment = Experiment.model_validate(
        {
            "name": "small",
            "train": "train.py:train",
            "metric": {"name": "score", "mode": "max"},
            "search": {"x": {"uniform": [0, 1]}},
            "epochs": {"min": 1, "max": 9},
            "cloud": {"instances": [TYPE], "market": "on-demand", "max_instances": 2},
            "limits": {"deadline": "15m", "budget": "$2"},
            "strategy": "best",
            **fields,
        }
    )
    problem = build_problem(experiment, [profile(WHOLE, name=TYPE)])
    job = make_job(make_plan(problem, Limits(900.0, 2.0), runs=1), 0.0, paced=False)
    offer = job.rentables[0].offer
    truth = Rentable(offer, profile({**shares, **WHOLE}, name=TYPE), 2)
    world = Cramped([truth], "score", synthetic_metric("max", 7), mib=mib)
    ledger = MemoryLedger()
    run(job.policy(), world, ledger)
    commands = [command for entry in ledger.entries for command in entry.commands]
    return [command.width for command in commands if isinstance(command, StartTrial)]


def test_small_trials_come_to_share_gpus() -> None:
    widths = widths_of_starts(PAYS, mib=1500.0)
    assert widths[0] >= 1.0, "nothing is known of its memory"
    first = widths.index(0.5)
    assert min(widths[:first]) >= 1.0, "two share a GPU before four do"
    assert 1 / 8 in widths[first:]


def test_as_many_share_as_fit_into_the_memory() -> None:
    widths = widths_of_starts(PAYS, mib=4000.0)
    assert min(widths) == 1 / 4


def test_trials_that_do_not_gain_have_whole_gpus_again() -> None:
    widths = widths_of_starts(DOES_NOT_PAY, mib=1500.0)
    halves = [place for place, width in enumerate(widths) if width == 0.5]
    assert 0 < len(halves) <= 16, "as many as start before the first are timed"
    assert min(widths) == 0.5
    assert all(width >= 1.0 for width in widths[halves[-1] + 1 :])
    assert len(widths) > halves[-1] + 10


@pytest.mark.parametrize("mib", [None, 9000.0], ids=["unknown", "too large"])
def test_what_may_not_fit_is_not_tried(mib: float | None) -> None:
    assert min(widths_of_starts(PAYS, mib)) >= 1.0


@pytest.mark.parametrize(
    "fields",
    [
        {"trial": {"gpus": {"min": 1}}},
        {"strategy": {"name": "asha", "allocator": "same"}},
        {"strategy": "sha", "trials": 16},
    ],
    ids=["at least one GPU", "the same for all", "stages go by what was measured"],
)
def test_who_has_whole_gpus(fields: dict[str, object]) -> None:
    assert min(widths_of_starts(PAYS, mib=1500.0, **fields)) >= 1.0


def test_an_allocator_shares_gpus_too() -> None:
    asha = {"name": "asha", "allocator": "fluid"}
    assert min(widths_of_starts(PAYS, mib=1500.0, strategy=asha)) < 1.0
