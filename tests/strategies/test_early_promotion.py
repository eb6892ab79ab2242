"""F19: who can't be pushed out of the best of a rung any more goes on before it is decided."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.model.events import EpochDone
from cloudtune.strategies.successive_halving import Bracket
from tests.builders import Played, Setting, by_name, offer, play, profile

QUICK = profile({1.0: 8.0}, start=1.0, resize=1.0, boot=0.0, launch=0.0, release=0.0)


def play_drawn(seed: int, strategy: str, *, early: bool) -> Played:
    """Play a job drawn by its seed: paces, ties, NaN, failures, min or max."""
    luck = random.Random(seed)
    trials = luck.randint(3, 30)
    values = [luck.choice([luck.random(), 0.5, math.nan]) for _ in range(trials)]
    paces = [luck.choice([1.0, 1.5, 4.0, luck.uniform(0.5, 8.0)]) for _ in range(trials)]
    eta = luck.choice([2, 3])
    # Between rungs: who fails as it waits at one gives its place away until the rung is decided,
    # so what then becomes of the others depends on when that is, early promotion or not.
    epochs = [3, 5, 6, 7] if eta == 2 else [2, 4, 5, 6, 7, 8]
    fails = {(f"t{n:02d}", luck.choice(epochs)) for n in range(trials) if luck.random() < 0.3}
    game = Setting(
        trials,
        metric=lambda number, _epoch: values[number],
        pace=lambda config, _epoch: paces[int(str(config["x"]))],
        mishap=lambda trial, _session, epoch: "failed" if (trial, epoch) in fails else "",
        mode=luck.choice(["min", "max"]),
        offer=offer(luck.choice([2, 8])),
        max_instances=luck.choice([1, 4]),
        profile=QUICK,
    )
    build = by_name(strategy, eta=eta, max_epochs=9, trials=trials)
    with pytest.MonkeyPatch.context() as patch:
        if not early:
            patch.setattr(Bracket, "_promote_early", lambda _self: None)
        return play(game, build)


@given(seed=st.integers(0, 100_000), strategy=st.sampled_from(["halving", "hyperband"]))
@settings(max_examples=20)
def test_f19_the_same_trials_come_equally_far(seed: int, strategy: str) -> None:
    soon, late = (play_drawn(seed, strategy, early=early) for early in (True, False))
    assert soon.epochs == late.epochs
    result = {name: trial.status for name, trial in soon.policy.trials.items()}
    assert result == {name: trial.status for name, trial in late.policy.trials.items()}


def test_f19_the_best_go_on_while_a_straggler_trains() -> None:
    """Nine trials on nine GPUs, one ten times slower; two of the best three are known before it."""
    game = Setting(
        9,
        metric=lambda number, _epoch: float(number),
        pace=lambda config, _epoch: 10.0 if config["x"] == 0 else 1.0,
        offer=offer(9),
        max_instances=1,
        profile=QUICK,
    )
    build = by_name("halving", eta=3, min_epochs=1, max_epochs=9, trials=9)
    soon = play(game, build)
    result = [item.event for item in soon.entries if isinstance(item.event, EpochDone)]
    reached = {(item.session.partition(".")[0], item.epoch): item.at for item in result}
    straggler = reached["t00", 1]
    assert reached["t08", 3] < straggler
    assert reached["t07", 3] < straggler
    assert ("t06", 2) not in {key for key, at in reached.items() if at < straggler}, (
        "third of three"
    )
    assert soon.epochs == {**{f"t{n:02d}": 1 for n in range(6)}, "t06": 3, "t07": 3, "t08": 9}
