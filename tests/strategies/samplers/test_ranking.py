"""What a run tells: scores of its trials, ranks of others, and how far it is trusted."""

import math
from random import Random

import pytest

from benchmarks.compare.sampler import TableSampler
from cloudtune.experiment.search_space import Categories, Domain, LogUniform, RandInt, Uniform
from cloudtune.experiment.spaces import sample
from cloudtune.model.trial import Trial
from cloudtune.strategies.samplers.adaptive import Adaptive
from cloudtune.strategies.samplers.axes import axes_by_size
from cloudtune.strategies.samplers.ranking import (
    MOST,
    Ranking,
    Score,
    certainty,
    compute_trust,
    rank_correlation,
    scores,
)

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


COUNT = 60
CONFIGS = sorted(sample(SPACE, COUNT, 3), key=lambda config: quality(dict(config)))
TRIED = [Score(place / (COUNT - 1), 1.0, 1) for place in range(COUNT)]


def halving_scores(*, tells: bool, count: int = 90) -> tuple[list[dict[int, float]], list[float]]:
    """Return a run whose best third at epoch 1 goes on to 3, and the best third of those to 9."""
    chance = Random(0)
    final = [chance.random() for _ in range(count)]
    first = [value if tells else chance.random() for value in final]
    result: list[dict[int, float]] = [{1: value} for value in first]
    on = sorted(range(count), key=lambda n: -first[n])[: count // 3]
    for n in on:
        result[n][3] = 1.0 + final[n]
    for n in sorted(on, key=lambda n: -final[n])[: count // 9]:
        result[n][9] = 1.0 + final[n]
    return result, final


def test_a_telling_first_epoch_orders_trials_without_more() -> None:
    histories, final = halving_scores(tells=True)
    result = scores(histories, "max")
    assert rank_correlation([item.value for item in result], final) > 0.99
    assert all(item.weight > 0.7 for item in result)


def test_a_first_epoch_that_foretells_nothing_counts_little() -> None:
    histories, final = halving_scores(tells=False)
    result = scores(histories, "max")
    short = [item for item, history in zip(result, histories, strict=True) if len(history) == 1]
    gone_on = [n for n, history in enumerate(histories) if len(history) > 1]
    assert max(item.weight for item in short) < 0.5
    values = [result[n].value for n in gone_on]
    assert rank_correlation(values, [final[n] for n in gone_on]) > 0.9
    spread = max(item.value for item in short) - min(item.value for item in short)
    assert spread < max(values) - min(values)
    assert min(values) < sum(item.value for item in short) / len(short), "going on was mere luck"


def test_first_epochs_are_believed_once_later_ones_agree() -> None:
    histories, _ = halving_scores(tells=True)
    early = [{1: history[1]} for history in histories]
    known = certainty(scores(histories, "max"), 9)
    assert certainty(scores(early, "max"), 9) < 0.6 < 0.8 < known
    assert certainty(scores(early, "max"), 1) == 1.0, "the first epoch is the last"
    misled, _ = halving_scores(tells=False)
    assert certainty(scores(misled, "max"), 9) < known / 2
    assert certainty(scores(misled, "max"), 81) < certainty(scores(misled, "max"), 9)
    assert certainty(scores([{}], "max"), 9) == certainty([], 9) == 0.0
    failed = certainty(scores([{}, {}, {}, {1: 0.5}], "max"), 16)
    assert 0.75 < failed < 1.0, "failed ones are over"


def test_a_trial_that_failed_or_diverged_is_the_worst() -> None:
    result = scores([{1: 0.5, 2: 0.6}, {}, {1: 0.4}, {1: math.nan}, {1: 0.9, 2: 0.95}], "max")
    values = [item.value for item in result]
    assert values[1] == values[3] == 0.0
    assert sorted(range(5), key=lambda n: -values[n])[:3] == [4, 0, 2]
    assert scores([], "max") == []


def test_one_that_ended_early_keeps_its_place() -> None:
    """Not behind them: it was no worse than the best of them when it ended."""
    long = [{1: 0.1 * n, 2: 0.1 * n + 0.5} for n in range(1, 9)]
    result = scores([*long, {1: 0.65}], "max")
    values = [item.value for item in result]
    assert values[5] < values[8] < values[6]


def test_it_ranks_configurations_that_none_has_tried() -> None:
    ranking = Ranking(CONFIGS, TRIED, AXES)
    fresh = sample(SPACE, 200, 99)
    result = ranking.of(fresh)
    assert rank_correlation(list(result), [quality(dict(config)) for config in fresh]) > 0.85
    assert 0.0 <= min(result) < max(result) <= 1.0


NOISE: dict[str, Domain] = {f"noise{number}": Uniform(0, 1) for number in range(6)}
WIDE = {**SPACE, **NOISE}


def ranked_in(space: dict[str, Domain], *, shuffled: bool = False) -> tuple[Ranking, float]:
    """Return a ranking of 60 configurations, and how well it ranks 200 others."""
    configs = sample(space, COUNT, 3)
    values = [quality(dict(config)) for config in configs]
    if shuffled:
        Random(0).shuffle(values)
    order = sorted(values)
    tried = [Score((order.index(value) + 0.5) / COUNT, 1.0, 1) for value in values]
    ranking = Ranking(configs, tried, axes_by_size(space))
    fresh = sample(space, 200, 99)
    expected = [quality(dict(config)) for config in fresh]
    return ranking, rank_correlation(list(ranking.of(fresh)), expected)


def test_axes_that_do_not_matter_get_little_weight() -> None:
    ranking, correlation = ranked_in(WIDE)
    weights = dict(zip(WIDE, ranking.weights, strict=True))
    assert max(weights[name] for name in NOISE) < weights["lr"] / 2
    assert correlation > 0.85
    assert ranking.skill() > 0.8


def test_many_axes_fit_no_chance() -> None:
    ranking, _ = ranked_in(WIDE, shuffled=True)
    assert compute_trust(COUNT, ranking.skill()) < 0.1


def test_a_fit_begins_with_the_weights_before() -> None:
    ranking, _ = ranked_in(WIDE)
    again = Ranking(CONFIGS, TRIED, AXES, [1.0, 2.0, 0.0], fit=False)
    assert again.weights == [1.0, 2.0, 0.0]
    configs = sample(WIDE, COUNT, 3)
    tried = [Score(quality(dict(config)), 1.0, 1) for config in configs]
    assert len(Ranking(configs, tried, axes_by_size(WIDE), ranking.weights).weights) == len(WIDE)


def test_regions_that_fail_are_avoided() -> None:
    """Half of the learning rates crash after an epoch that looks better than the others do."""
    rows = [Trial(f"r{n}", config) for n, config in enumerate(sample(WIDE, 300, 5))]
    sampler = Adaptive(TableSampler(rows, "random", 0, 80), "max", 5)
    crashed = []
    while (trial := sampler.ask()) is not None:
        lr = trial.config["lr"]
        assert isinstance(lr, float)
        crashed.append(lr > 1e-2)
        sampler.tell(trial, 1, 0.5 + 0.1 * crashed[-1])
        if crashed[-1]:
            sampler.tell(trial, 1, None)
        else:
            for epoch in range(2, 6):
                sampler.tell(trial, epoch, 0.5 + 0.1 * epoch)
    assert sum(crashed[:20]) > 6
    assert sum(crashed[40:]) / 40 < 0.3, "half of them would by chance"


def test_values_that_are_missing_or_unlisted_are_far_away() -> None:
    ranking = Ranking(CONFIGS, TRIED, AXES)
    odd: list[dict[str, object]] = [
        {"lr": None, "layers": 3, "optimizer": "lion"},
        {"lr": -1.0, "layers": True},
        {},
    ]
    assert all(0.0 <= value <= 1.0 for value in ranking.of(odd))


@pytest.mark.parametrize("sound", [True, False])
def test_a_tables_rows_are_named_as_the_model_proves(sound: bool) -> None:
    rows = [Trial(f"r{n}", config) for n, config in enumerate(sample(SPACE, 120, 5))]
    chance = Random(1)
    sampler = Adaptive(TableSampler(rows, "random", 0, 60), "max", 1)
    given = []
    while (trial := sampler.ask()) is not None:
        given.append(trial)
        sampler.tell(trial, 1, quality(dict(trial.config)) if sound else chance.random())
    assert len({trial.id for trial in given}) == len(given) == 60
    mean = sum(quality(dict(t.config)) for t in given) / 60
    plain = sum(quality(dict(t.config)) for t in rows) / 120
    assert (mean > plain + 0.2) is sound


def test_the_direction_counts() -> None:
    histories, _ = halving_scores(tells=True)
    upside = [{e: -value for e, value in history.items()} for history in histories]
    assert scores(histories, "max") == scores(upside, "min")


def test_trust_follows_results() -> None:
    assert compute_trust(0, 0.0) == compute_trust(1, 1.0) == 0.0
    assert compute_trust(10, 0.9) > compute_trust(10, 0.6) > compute_trust(10, 0.0)
    assert compute_trust(60, 0.0) == compute_trust(60, -0.2) == 0.0, "chance earns none"
    assert compute_trust(200, 1.0) == MOST
