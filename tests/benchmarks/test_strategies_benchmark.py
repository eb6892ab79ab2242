from pathlib import Path

import pandas as pd
import pytest

from benchmarks.compare.case import play, record
from benchmarks.curves_synthetic import synthetic
from benchmarks.strategies_cells import OFFER, Cell, Choices, Ground, Variant
from benchmarks.strategies_reading import track_of
from benchmarks.strategies_runs import ANY, Contest, Job, Kept, place, wanted
from benchmarks.strategies_verdict import crossed

CELLS = (Cell(0.25, 1.0), Cell(0.25, 8.0), Cell(0.5, 3.0), Cell(1.0, 1.0), Cell(2.0, 8.0))


@pytest.fixture(scope="module")
def ground() -> Ground:
    curves = synthetic(count=60, epochs=18, seed=1, epoch_seconds=100.0)
    assert curves.mean_seconds is not None
    return Ground("synthetic", curves, curves.mean_seconds)


READ = [
    Variant("asha", 3, "constant:1"),
    Variant("sha", 3, "constant:4"),
    Variant("hyperband", 2, "naive:4"),
    Variant("random", 3, "constant:16"),
    Variant("sha", 4, "naive:16"),
]


@pytest.mark.parametrize("variant", READ, ids=lambda variant: variant.label)
def test_long_run_equals_its_cell(ground: Ground, variant: Variant) -> None:
    where = place(ground, ANY)
    job = Job(7, ground.name, ANY, variant, CELLS)
    played = record(where.benchmark, wanted(job, ground.limits(Cell(2.0, 8.0))))
    track = track_of(played, OFFER, where.benchmark.brakes)
    read = 0
    for cell in CELLS:
        reading = track.read(ground.limits(cell))
        if reading is not None:
            own = play(where.benchmark, wanted(job, ground.limits(cell)))
            assert (reading.point and reading.point.metric) == own.metric
            assert own.seconds <= reading.at + track.tick + track.drain
            read += 1
    assert read >= 3


def test_variant_is_judged_on_other_half() -> None:
    regrets = pd.DataFrame(
        [[0.1, 0.9, 0.1, 0.9], [0.8, 0.2, 0.8, 0.2]], index=["good on even", "good on odd"]
    )
    by_seed, chosen = crossed(regrets, [0, 1, 2, 3])
    # What is best on the even seeds is judged on the odd ones, and the other way round.
    assert by_seed.to_dict() == {0: 0.8, 1: 0.9, 2: 0.8, 3: 0.9}
    assert chosen == "good on odd / good on even"


def test_an_interrupted_comparison_goes_on_where_it_was(ground: Ground, tmp_path: Path) -> None:
    choices = Choices(etas=(3,), fleets=("constant",), sizes=(2,))
    contest = Contest(
        [ground], ["sublinear"], ["asha", "hypersched", "seer"], choices, CELLS[:2], seeds=1
    )
    jobs = list(contest.jobs())
    assert [(job.variant.strategy, job.profile) for job in jobs] == [
        ("asha", ANY),
        ("hypersched", "sublinear"),
        ("seer", "sublinear"),
    ]
    kept = Kept(tmp_path / "runs.jsonl")
    done = [place(ground, job.profile).done(job) for job in jobs]
    for item in done:
        kept.keep(item)
    again = Kept(tmp_path / "runs.jsonl")
    assert again.done == {item.key: item for item in done}
    assert not any(again.left(job) for job in jobs)
    wider = Job(0, ground.name, ANY, jobs[0].variant, CELLS)
    assert (left := again.left(wider)) is not None
    assert left.cells == CELLS[2:]
    fresh = Kept(tmp_path / "runs.jsonl", again=["seer"])
    assert [bool(fresh.left(job)) for job in jobs] == [False, False, True]
