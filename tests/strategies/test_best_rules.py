"""What `seer` reckons with, by hand."""

import math

import numpy as np
import pytest

from cloudtune.strategies import best_rules

EPOCHS = (1, 2, 4, 8, 16, 32, 64)


def test_a_rung_that_says_nothing_is_found_out() -> None:
    rng = np.random.default_rng(1)
    lower = {f"t{n}": float(rng.normal()) for n in range(60)}
    same = {name: value + 0.01 * float(rng.normal()) for name, value in lower.items()}
    other = {name: float(rng.normal()) for name in lower}
    assert best_rules.step(lower, same) > 0.97
    assert best_rules.step(lower, other) < 0.4


def test_that_only_the_better_half_went_on_is_corrected_for() -> None:
    rng = np.random.default_rng(2)
    result = []
    for _ in range(20):
        lower = {f"t{n}": float(rng.normal()) for n in range(80)}
        upper = {name: 0.9 * v + 0.44 * float(rng.normal()) for name, v in lower.items()}
        best = sorted(upper, key=lambda name: -lower[name])[:40]
        result.append(best_rules.step(lower, {name: upper[name] for name in best}))
    assert np.mean(result) == pytest.approx(0.88, abs=0.05)  # the whole's; of the half alone 0.75


def test_new_trials_begin_deeper_where_the_first_rungs_say_little() -> None:
    telling = [0.97] * 6
    silent = [0.2, 0.3, 0.4, 0.97, 0.97, 0.97]
    assert best_rules.first_rung(EPOCHS, telling, work=500.0, setup=0.1) == 0
    assert EPOCHS[best_rules.first_rung(EPOCHS, silent, work=500.0, setup=0.1)] == 8
    assert best_rules.first_rung(EPOCHS, silent, work=500.0, setup=0.1) >= best_rules.first_rung(
        EPOCHS, silent, work=20.0, setup=0.1
    )
    assert best_rules.first_rung((5,), [], work=100.0, setup=0.0) == 0


def test_the_opening_spends_its_part_by_its_time() -> None:
    made = best_rules.opening(10.0, 1000.0, 32.0, 0.01, 64)
    assert made.instances * 0.01 * (made.until - 10.0) == pytest.approx(24.0)
    assert made.until <= 510.0
    assert made.kept == pytest.approx(8.0)
    replaced = best_rules.opening(300.0, 710.0, 20.0, 0.02, 64, before=made)
    spent = replaced.instances * 0.02 * (replaced.until - 300.0)
    assert (replaced.instances, replaced.kept) == (3, made.kept)
    assert replaced.until <= made.until
    assert 20.0 - spent >= made.kept - 1e-9, "at twice the price the end keeps what it had"
    assert math.isinf(best_rules.opening(0.0, math.inf, math.inf, 0.01, 3).until)
