"""With spread, simulated runs are as the outlook says: in their means, and in how far they vary.

They were written apart: the outlook plays the planners' model with arrays, the runs are the policy
in a world of events. Where trials happen to survive together on instances that are kept, a run is
ahead of its plan, which counts on no luck: such jobs may be faster than predicted by a little.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Charges, Forecast, Rentable, Spread
from cloudtune.model.trial import EndReason
from cloudtune.planners.arrays import Floats
from cloudtune.planners.cost_model import price
from cloudtune.planners.estimate.outlook import outlook
from cloudtune.runs.figures import figures
from tests.builders import NODE_BOUNDARY, Setting, group, offer, play, profile

SEEDS = 12
LINEAR = {0.5: 16.0, 1.0: 8.0, 2.0: 4.0, 4.0: 2.0}
ONE, TWO = offer(), offer(8, 90.0, name="p.8x")
SPOT = offer(market="spot", interruptions_per_hour=20.0)


@dataclass(frozen=True)
class Case:
    """A job of 8, 4, 2, 1 trials, by stages of (offer, instances, width, trials).

    `luck` is how much faster runs may be than predicted, as a share.
    """

    stages: Sequence[Sequence[tuple[Offer, int, float, int]]]
    setting: Setting
    luck: float = 0.0


def setting(on: Offer = ONE, *others: Rentable, error: float = 0.0, **but: object) -> Setting:
    made = profile(LINEAR, spread=0.15, error=error)
    whole = Setting(
        trials=8,
        min_epochs=6,
        max_epochs=48,
        offer=on,
        profile=made,
        max_instances=8,
        others=others,
        charges=Charges(0.1, 0.001),
    )
    return replace(whole, **but)  # type: ignore[arg-type]


def on(offer: Offer, *stages: tuple[int, float, int]) -> list[list[tuple[Offer, int, float, int]]]:
    return [[(offer, *stage)] for stage in stages]


FASTER = Rentable(
    TWO, profile({w: s * 0.6 for w, s in LINEAR.items()}, spread=0.15, name="p.8x"), 8
)
CASES = {
    "shrinking": Case(on(ONE, (8, 4, 8), (4, 4, 4), (2, 4, 2), (1, 4, 1)), setting()),
    "one fleet": Case(on(ONE, (2, 1, 8), (2, 2, 4), (2, 4, 2), (2, 4, 1)), setting()),
    "survivors move": Case(on(ONE, (2, 1, 8), (1, 1, 4), (1, 2, 2), (1, 4, 1)), setting(), 0.01),
    "waves": Case(on(ONE, (1, 1, 8), (1, 2, 4), (1, 4, 2), (1, 4, 1)), setting(), 0.01),
    "packed waves": Case(on(ONE, (1, 0.5, 8), (1, 2, 4), (1, 2, 2), (1, 2, 1)), setting(), 0.01),
    "growing": Case(
        on(ONE, (1, 1, 8), (2, 2, 4), (4, 8, 2), (2, 8, 1)),
        setting(profile=profile(NODE_BOUNDARY, spread=0.15)),
    ),
    "wrong profile": Case(
        on(ONE, (2, 1, 8), (2, 2, 4), (1, 2, 2), (1, 4, 1)), setting(error=0.1), 0.01
    ),
    "spot": Case(on(SPOT, (2, 1, 8), (1, 1, 4), (1, 2, 2), (1, 4, 1)), setting(SPOT), 0.01),
    "two offers": Case(
        [[(ONE, 1, 1, 4), (TWO, 1, 2, 4)], *on(TWO, (1, 2, 4), (1, 4, 2)), *on(ONE, (1, 4, 1))],
        setting(ONE, FASTER),
        0.01,
    ),
}


def simulate_case(case: Case) -> tuple[Forecast, Floats]:
    """Return the outlook of a case, and the seconds, dollars and GPU-hours of its runs."""
    asked = case.setting.request()
    stages = [tuple(group(*part) for part in stage) for stage in case.stages]
    plan = price(asked, stages, "by hand")
    runs = []
    for seed in range(SEEDS):
        played = play(case.setting.but(seed=seed), plan)
        assert played.policy.ending is EndReason.DONE
        runs.append((played.seconds, played.dollars, figures(played.policy).gpu_hours))
    return outlook(asked, plan, samples=4000), np.array(runs).T


@pytest.mark.parametrize("name", CASES)
def test_runs_are_as_foretold(name: str) -> None:
    case = CASES[name]
    result, (seconds, dollars, gpu_hours) = simulate_case(case)
    agree(result.seconds, seconds, case.luck)
    agree(result.dollars, dollars, case.luck)
    agree(result.gpu_hours, gpu_hours, case.luck)


def agree(printed: Spread, runs: Floats, luck: float) -> None:
    error = float(runs.std(ddof=1)) / math.sqrt(len(runs))
    off = float(runs.mean()) - printed.mean
    assert -4 * error - luck * printed.mean <= off <= 4 * error
    covered = float(np.mean((printed.p5 <= runs) & (runs <= printed.p95)))
    # 90 % but for chance: four standard errors of a share of n runs.
    assert covered >= 0.9 - 4 * math.sqrt(0.9 * 0.1 / len(runs))
    assert 0.6 <= float(runs.std(ddof=1)) / ((printed.p95 - printed.p5) / 3.29) <= 1.6
