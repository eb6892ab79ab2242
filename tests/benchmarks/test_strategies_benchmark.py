import math
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.compare.case import play, record
from benchmarks.curves_synthetic import synthetic
from benchmarks.strategies_cells import (
    GRID,
    OFFER,
    OURS,
    PEERS,
    PROFILES,
    Cell,
    Choices,
    Ground,
    Variant,
)
from benchmarks.strategies_reading import track_of
from benchmarks.strategies_runs import ANY, Contest, Done, Job, Kept, Row, place, wanted
from benchmarks.strategies_verdict import Book, crossed, judged, share, table

CELLS = (Cell(0.25, 1.0), Cell(0.25, 8.0), Cell(0.5, 3.0), Cell(1.0, 1.0), Cell(2.0, 8.0))


@pytest.fixture(scope="module")
def ground() -> Ground:
    curves = synthetic(count=60, epochs=18, seed=1, epoch_seconds=100.0)
    assert curves.mean_seconds is not None
    return Ground("synthetic", curves, curves.mean_seconds)


def test_made_up_curves_are_the_same_for_a_seed_and_some_diverge() -> None:
    curves = synthetic(count=200, epochs=30, seed=3)
    assert curves == synthetic(count=200, epochs=30, seed=3)
    assert curves != synthetic(count=200, epochs=30, seed=4)
    diverged = [curve for curve in curves.curves if any(map(math.isnan, curve.metrics))]
    assert 0.05 < len(diverged) / 200 < 0.3
    whole = [curve for curve in curves.curves if curve not in diverged and curve.epochs > 20]
    assert all(max(curve.metrics[-3:]) > curve.metrics[0] for curve in whole)
    assert len({curve.seconds[0] for curve in whole}) > 1


READ = [
    Variant("asha", 3, "constant:1"),
    Variant("sha", 3, "constant:4"),
    Variant("hyperband", 2, "naive:4"),
    Variant("random", 3, "constant:16"),
    Variant("sha", 4, "naive:16"),
]


@pytest.mark.parametrize("variant", READ, ids=lambda variant: variant.label)
def test_a_long_run_read_at_a_cell_is_the_run_of_that_cell(
    ground: Ground, variant: Variant
) -> None:
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


def test_a_fleet_that_the_budget_cannot_pay_for_is_played(ground: Ground) -> None:
    where = place(ground, ANY)
    cells = (Cell(0.25, 0.1), Cell(2.0, 8.0))
    done = where.done(Job(0, ground.name, ANY, Variant("asha", 3, "constant:32"), cells))
    assert [row.read for row in done.rows] == [False, True]
    assert done.plays == 2
    assert not done.violations


def test_a_variant_is_chosen_on_one_half_and_judged_on_the_other() -> None:
    regrets = pd.DataFrame(
        [[0.1, 0.9, 0.1, 0.9], [0.8, 0.2, 0.8, 0.2]], index=["good on even", "good on odd"]
    )
    by_seed, chosen = crossed(regrets, [0, 1, 2, 3])
    # What is best on the even seeds is judged on the odd ones, and the other way round.
    assert by_seed.to_dict() == {0: 0.8, 1: 0.9, 2: 0.8, 3: 0.9}
    assert chosen == "good on odd / good on even"


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([-1.0, -1.1, -0.9, -1.0], "better"),
        ([1.0, 1.1, 0.9, 1.0], "worse"),
        ([1.0, -1.0, 1.0, -0.9], "tied"),
        ([0.0, 0.0, 0.0, 0.0], "tied"),
    ],
)
def test_two_standard_errors_decide(differences: list[float], verdict: str) -> None:
    assert judged(differences)[2] == verdict


def _row(method: str, variant: str, seed: int, regret: float, profile: str = "sublinear") -> Row:
    return Row("g", profile, method, variant, seed, 1.0, 3.0, None, regret, 0.0, 0.0, False)


def test_each_is_held_against_the_best_of_the_others_never_against_itself() -> None:
    book = Book({"g": 0.01})
    for seed in range(4):
        peers = [_row("asha", "asha 4", seed, 0.2, ANY), _row("asha", "asha 8", seed, 0.4, ANY)]
        book.add([*peers, _row("rubberband", "of 8", seed, 0.1), _row("seer", "seer", seed, 0.001)])
    found = book.verdicts(["sublinear"], ["seer", "rubberband"], ["asha", "rubberband"], range(4))
    seer, rubberband = found
    assert seer.verdict == "better"
    assert seer.ratio == pytest.approx(0.1)  # 0.001 counts as the floor
    assert seer.peers == "of 8"
    assert rubberband.peers == "asha 4"
    assert share(found)[:4] == (2, 2, 0, 0)
    assert len(table(found)) == 1 + 4


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
    for each in done:
        kept.keep(each)
    again = Kept(tmp_path / "runs.jsonl")
    assert again.done == {each.key: each for each in done}
    assert not any(again.left(job) for job in jobs)
    wider = Job(0, ground.name, ANY, jobs[0].variant, CELLS)
    assert (left := again.left(wider)) is not None
    assert left.cells == CELLS[2:]
    fresh = Kept(tmp_path / "runs.jsonl", again=["seer"])
    assert [bool(fresh.left(job)) for job in jobs] == [False, False, True]


def test_no_run_passes_its_limits(ground: Ground) -> None:
    choices = Choices(etas=(3,), fleets=("naive",), sizes=(4,), trials=(4,))
    contest = Contest([ground], ["non-monotone"], [*PEERS, *OURS], choices, GRID[:7:3], seeds=1)
    done: list[Done] = [place(ground, job.profile).done(job) for job in contest.jobs()]
    assert [violation for each in done for violation in each.violations] == []
    assert {row.method for each in done for row in each.rows} == {*PEERS, *OURS}
    assert set(PROFILES) >= set(contest.profiles)
