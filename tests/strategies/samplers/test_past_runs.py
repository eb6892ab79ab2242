"""What an earlier run tells: scores of its trials, ranks of others, and how far it is trusted."""

import math
from random import Random

import pytest

from benchmarks.compare.sampler import TableSampler
from cloudtune.experiment.search_space import Categories, Domain, LogUniform, RandInt
from cloudtune.experiment.spaces import sample
from cloudtune.model.trial import Trial
from cloudtune.strategies.samplers.axes import axes_by_size
from cloudtune.strategies.samplers.past_runs import (
    AT_FIRST,
    MOST,
    PastRun,
    PastTrial,
    Ranking,
    rank_correlation,
    scores,
    shared_axes,
    trust_of,
    useless,
)
from cloudtune.strategies.samplers.warm_start import Experienced

SPACE: dict[str, Domain] = {
    "lr": LogUniform(1e-4, 1.0),
    "layers": RandInt(1, 9),
    "optimizer": Categories(("sgd", "adam")),
}
AXES = axes_by_size(SPACE)


def quality(config: dict[str, object]) -> float:
    lr = config["lr"]
    assert isinstance(lr, float)
    return -abs(math.log10(lr) + 2.0) + (0.5 if config["optimizer"] == "adam" else 0.0)


def earlier(count: int = 60, seed: int = 3) -> PastRun:
    configs = sample(SPACE, count, seed)
    order = sorted(range(count), key=lambda n: quality(dict(configs[n])))
    trials = (PastTrial(configs[n], place / (count - 1)) for place, n in enumerate(order))
    return PastRun("earlier", tuple(trials))


def halved(*, tells: bool, count: int = 90) -> tuple[list[dict[int, float]], list[float]]:
    """Return a run whose best third at epoch 1 goes on to 3, and the best third of those to 9."""
    chance = Random(0)
    final = [chance.random() for _ in range(count)]
    first = [value if tells else chance.random() for value in final]
    found: list[dict[int, float]] = [{1: value} for value in first]
    on = sorted(range(count), key=lambda n: -first[n])[: count // 3]
    for n in on:
        found[n][3] = 1.0 + final[n]
    for n in sorted(on, key=lambda n: -final[n])[: count // 9]:
        found[n][9] = 1.0 + final[n]
    return found, final


def test_a_first_epoch_that_foretells_orders_those_that_went_no_further() -> None:
    histories, final = halved(tells=True)
    found = scores(histories, "max")
    assert rank_correlation([each.value for each in found], final) > 0.99
    assert all(each.weight > 0.7 for each in found)


def test_a_first_epoch_that_foretells_nothing_counts_little() -> None:
    histories, final = halved(tells=False)
    found = scores(histories, "max")
    short = [each for each, history in zip(found, histories, strict=True) if len(history) == 1]
    gone_on = [n for n, history in enumerate(histories) if len(history) > 1]
    assert max(each.weight for each in short) < 0.5
    values = [found[n].value for n in gone_on]
    assert rank_correlation(values, [final[n] for n in gone_on]) > 0.9
    spread = max(each.value for each in short) - min(each.value for each in short)
    assert spread < max(values) - min(values)
    assert min(values) < sum(each.value for each in short) / len(short), "going on was mere luck"


def test_the_direction_counts() -> None:
    histories, _ = halved(tells=True)
    upside = [{e: -value for e, value in history.items()} for history in histories]
    assert scores(histories, "max") == scores(upside, "min")


def test_a_trial_that_failed_or_diverged_is_the_worst() -> None:
    found = scores([{1: 0.5, 2: 0.6}, {}, {1: 0.4}, {1: math.nan}, {1: 0.9, 2: 0.95}], "max")
    values = [each.value for each in found]
    assert values[1] == values[3] == 0.0
    assert sorted(range(5), key=lambda n: -values[n])[:3] == [4, 0, 2]
    assert scores([], "max") == []


def test_one_that_ended_early_takes_its_place_among_those_that_went_on() -> None:
    """Not behind them: it was no worse than the best of them when it ended."""
    long = [{1: 0.1 * n, 2: 0.1 * n + 0.5} for n in range(1, 9)]
    found = scores([*long, {1: 0.65}], "max")
    values = [each.value for each in found]
    assert values[5] < values[8] < values[6]


def test_it_ranks_configurations_that_nobody_has_tried() -> None:
    ranking = Ranking(earlier(), AXES)
    fresh = sample(SPACE, 200, 99)
    found = ranking.of(fresh)
    assert rank_correlation(list(found), [quality(dict(config)) for config in fresh]) > 0.85
    assert 0.0 <= min(found) < max(found) <= 1.0


def test_what_weighs_nothing_says_nothing() -> None:
    true, lies = earlier(), [PastTrial(t.config, 1.0 - t.score, 0.0) for t in earlier().trials]
    fresh = sample(SPACE, 20, 99)
    mixed = PastRun("mixed", (*true.trials, *lies))
    told, alone = Ranking(mixed, AXES).of(fresh), Ranking(true, AXES).of(fresh)
    assert rank_correlation(list(told), list(alone)) > 0.95


def test_values_that_are_missing_or_unlisted_are_far_away() -> None:
    ranking = Ranking(earlier(), AXES)
    odd: list[dict[str, object]] = [
        {"lr": None, "layers": 3, "optimizer": "lion"},
        {"lr": -1.0, "layers": True},
        {},
    ]
    assert all(0.0 <= value <= 1.0 for value in ranking.of(odd))


def test_which_parameters_two_runs_share() -> None:
    configs = [{"lr": 10.0**-n, "layers": 4, "optimizer": "adam", "wd": n} for n in range(1, 5)]
    assert list(shared_axes(AXES, configs)) == ["lr"], "the others don't vary, or aren't searched"
    assert shared_axes(AXES, [{"lr": 1e3 * n} for n in range(1, 9)]) == {}
    assert list(shared_axes(AXES, [{"optimizer": x} for x in ("sgd", "adam")])) == ["optimizer"]


def test_why_a_run_is_of_no_use() -> None:
    assert useless(earlier(), AXES) == ""
    assert "fewer than 4" in useless(earlier(3), AXES)
    assert "none of the parameters" in useless(earlier(), {})
    assert useless(earlier(), None) == ""


def test_trust_begins_low_and_follows_what_came_of_it() -> None:
    assert trust_of(0, 0.0) == trust_of(1, 1.0) == AT_FIRST
    assert trust_of(10, 0.9) > trust_of(10, 0.5) > trust_of(10, 0.0) > trust_of(10, -0.2)
    assert trust_of(60, 0.0) < 0.1, "chance earns none"
    assert trust_of(6, -0.7) == 0.0, "soon out"
    assert trust_of(200, 1.0) == MOST


@pytest.mark.parametrize("sound", [True, False])
def test_rows_of_a_table_are_named_as_far_as_that_proves_right(sound: bool) -> None:
    rows = [Trial(f"r{n}", config) for n, config in enumerate(sample(SPACE, 120, 5))]
    past = earlier()
    if not sound:
        past = PastRun("lies", tuple(PastTrial(t.config, 1.0 - t.score) for t in past.trials))
    sampler = Experienced(TableSampler(rows, "random", 0, 60), [past], "max")
    given = []
    while (trial := sampler.ask()) is not None:
        given.append(trial)
        sampler.tell(trial, 1, quality(dict(trial.config)))
    assert len({trial.id for trial in given}) == len(given) == 60
    named = [trial for trial in given if trial.origin is not None and trial.origin.run]
    assert (len(named) > 30) is sound
    assert (len(named) < 10) is not sound
    mean = sum(quality(dict(t.config)) for t in given) / 60
    plain = sum(quality(dict(t.config)) for t in rows) / 120
    assert (mean > plain + 0.2) is sound
