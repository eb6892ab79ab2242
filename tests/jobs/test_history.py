from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cloudtune.experiment.search_space import Choice, Constant, LogUniform, RandInt, Uniform
from cloudtune.jobs.history import Knowledge, Seen, append, path_of, rows
from cloudtune.jobs.report import build
from tests.builders import Setting, play

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cloudtune.experiment.search_space import Domain

SPACE: dict[str, Domain] = {
    "lr": LogUniform(1e-5, 1.0),
    "layers": RandInt(1, 9),
    "opt": Choice(("sgd", "adam")),
    "batch": Choice((32, 64, 128)),
    "fixed": Constant(3),
}


def config(chance: np.random.Generator) -> dict[str, object]:
    return {
        "lr": float(10 ** (-5 * chance.random())),
        "layers": int(chance.integers(1, 9)),
        "opt": str(chance.choice(["sgd", "adam"])),
        "batch": int(chance.choice([32, 64, 128])),
        "fixed": 3,
    }


def level(config: Mapping[str, object]) -> float:
    """Return a metric without noise: smooth in the numbers, with a step between the optimizers."""
    lr, layers = config["lr"], config["layers"]
    assert isinstance(lr, float)
    assert isinstance(layers, int)
    bump = math.exp(-((math.log10(lr) + 2.5) ** 2))
    return 0.5 * bump + 0.03 * layers + (0.1 if config["opt"] == "adam" else 0.0)


def pace(config: Mapping[str, object]) -> float:
    layers, batch = config["layers"], config["batch"]
    assert isinstance(layers, int)
    assert isinstance(batch, int)
    return 0.4 + 0.2 * layers * float((64 / batch) ** 0.3)


def seen(
    config: Mapping[str, object], number: int = 0, noise: float = 0.0, chance: float = 0.0
) -> Seen:
    value = level(config) + noise * chance
    return Seen(
        "r1", f"t{number}", config, pace(config) * math.exp(noise * chance), "acc", {3: value}
    )


def known(count: int, noise: float = 0.0, seed: int = 0) -> Knowledge:
    chance = np.random.default_rng(seed)
    configs = [config(chance) for _ in range(count)]
    return Knowledge(
        SPACE,
        tuple(
            seen(each, n, noise, float(chance.standard_normal())) for n, each in enumerate(configs)
        ),
        "acc",
    )


# ---- predictions -----------------------------------------------------------------------------


def test_zero_knowledge_says_so() -> None:
    nothing = Knowledge(SPACE)
    asked = config(np.random.default_rng(0))
    assert nothing.predict_pace(asked) is None
    assert nothing.predict_metric(asked, 3) is None
    assert known(20).predict_metric(asked, 4) is None, "none of them reached epoch 4"


def test_one_trial_is_a_guess_without_a_bound() -> None:
    one = known(1)
    guess = one.predict_metric(config(np.random.default_rng(9)), 3)
    assert guess is not None
    assert guess.mean == pytest.approx(one.seen[0].history[3])
    assert guess.n == 1
    assert (guess.sd, guess.low, guess.high) == (math.inf, -math.inf, math.inf)
    slow = one.predict_pace(config(np.random.default_rng(9)))
    assert slow is not None
    assert (slow.low, slow.high) == (0.0, math.inf)


@pytest.mark.parametrize("noise", [0.0, 0.2], ids=["smooth", "noisy"])
@pytest.mark.parametrize("count", [4, 8, 12, 40, 150])
def test_nine_in_ten_lie_in_the_interval(count: int, noise: float) -> None:
    """Over many histories, each asked of ten new configurations."""
    inside = {"metric": 0, "pace": 0}
    histories = 40
    for seed in range(histories):
        knowledge, chance = known(count, noise, seed), np.random.default_rng(1000 + seed)
        for _ in range(10):
            asked = config(chance)
            fresh = seen(asked, 0, noise, float(chance.standard_normal()))
            metric, slow = knowledge.predict_metric(asked, 3), knowledge.predict_pace(asked)
            assert metric is not None
            assert slow is not None
            assert fresh.pace is not None
            inside["metric"] += metric.low <= fresh.history[3] <= metric.high
            inside["pace"] += slow.low <= fresh.pace <= slow.high
    for name, count_inside in inside.items():
        assert 0.84 <= count_inside / (10 * histories) <= 0.985, name


def mean_miss(knowledge: Knowledge, of: Callable[[Mapping[str, object]], float]) -> float:
    chance, misses = np.random.default_rng(77), []
    for _ in range(200):
        asked = config(chance)
        found = knowledge.predict_metric(asked, 3)
        assert found is not None
        misses.append(abs(found.mean - of(asked)))
    return float(np.mean(misses))


def test_more_knowledge_misses_less_and_says_so() -> None:
    few, many = known(10), known(300)
    assert mean_miss(many, level) < 0.6 * mean_miss(few, level)
    asked = config(np.random.default_rng(5))
    few_said, many_said = few.predict_metric(asked, 3), many.predict_metric(asked, 3)
    assert few_said is not None
    assert many_said is not None
    assert many_said.sd < few_said.sd
    assert many_said.high - many_said.low < 0.7 * (few_said.high - few_said.low)


def test_near_beats_far() -> None:
    """Half of the space is known: what lies there is predicted better, and more surely."""
    space: dict[str, Domain] = {"lr": LogUniform(1e-6, 1.0), "x": Uniform(0, 1)}
    chance = np.random.default_rng(0)

    def value(each: Mapping[str, object]) -> float:
        lr, x = each["lr"], each["x"]
        assert isinstance(lr, float)
        assert isinstance(x, float)
        return math.sin(math.log10(lr)) + x

    lows = [{"lr": 10 ** -(3 + 3 * chance.random()), "x": chance.random()} for _ in range(60)]
    knowledge = Knowledge(
        space,
        tuple(Seen("r", f"t{n}", e, 1.0, "acc", {1: value(e)}) for n, e in enumerate(lows)),
        "acc",
    )
    near, far = {"lr": 10**-4.5, "x": 0.5}, {"lr": 0.5, "x": 0.5}
    said = {name: knowledge.predict_metric(e, 1) for name, e in (("near", near), ("far", far))}
    assert said["near"] is not None
    assert said["far"] is not None
    assert abs(said["near"].mean - value(near)) < 0.3 * abs(said["far"].mean - value(far))
    assert said["near"].sd < 0.5 * said["far"].sd
    assert said["far"].low <= value(far) <= said["far"].high


def test_a_configuration_that_was_seen_is_predicted_by_itself() -> None:
    knowledge = known(100)
    missed = []
    for each in knowledge.seen:
        said = knowledge.predict_pace(each.config)
        assert said is not None
        assert each.pace is not None
        missed.append(abs(math.log(said.mean / each.pace)))
    assert np.median(missed) < 0.1


def test_constant_results_are_predicted_without_a_spread() -> None:
    chance = np.random.default_rng(0)
    same = tuple(Seen("r", f"t{n}", config(chance), 2.0, "acc", {1: 0.5}) for n in range(20))
    said = Knowledge(SPACE, same, "acc").predict_pace(config(chance))
    assert said is not None
    assert (said.mean, said.low, said.high) == pytest.approx((2.0, 2.0, 2.0))


def test_repeated_configurations_give_the_spread_of_their_own() -> None:
    chance = np.random.default_rng(0)
    one = config(chance)
    noisy = tuple(
        Seen("r", f"t{n}", one, 1.0, "acc", {1: float(chance.normal(0.5, 0.1))}) for n in range(50)
    )
    said = Knowledge(SPACE, noisy, "acc").predict_metric(one, 1)
    assert said is not None
    assert said.mean == pytest.approx(0.5, abs=0.1)
    assert 0.1 < said.high - said.mean < 0.3


def test_other_metrics_tell_the_pace_alone() -> None:
    knowledge = replace(known(10), metric="loss")
    asked = config(np.random.default_rng(0))
    assert knowledge.predict_metric(asked, 3) is None
    assert knowledge.predict_pace(asked) is not None


# ---- files -----------------------------------------------------------------------------------


def test_what_was_appended_is_loaded(tmp_path: Path) -> None:
    path = path_of(tmp_path / "knowledge", "ab" * 32)
    assert path.name == "abababababababab.jsonl"
    first, second = known(3).seen, known(2, seed=1).seen
    append(path, first)
    append(path, second)
    append(path, [])
    loaded = Knowledge.load(path, SPACE, "acc")
    assert loaded.seen == (*first, *second)
    assert loaded.notices == ()


def test_no_file_is_no_knowledge(tmp_path: Path) -> None:
    loaded = Knowledge.load(tmp_path / "none.jsonl", SPACE, "acc")
    assert loaded.seen == ()
    assert loaded.predict_pace(config(np.random.default_rng(0))) is None


def test_damaged_lines_are_left_out_with_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "k.jsonl"
    append(path, known(2).seen)
    good = json.loads(path.read_text().splitlines()[0])
    bad: list[object] = [
        {**good, "cloudtune_knowledge": 2},
        {**good, "pace": -1.0},
        {**good, "pace": "fast"},
        {**good, "history": {"1": None}},
        {**good, "history": [1]},
        {**good, "history": {"1": math.nan}},
        {**good, "config": [1]},
        {**good, "more": 1},
        {name: value for name, value in good.items() if name != "run"},
        [1, 2],
    ]
    with path.open("ab") as file:
        file.write("".join(json.dumps(line) + "\n" for line in bad).encode())
        file.write(b"\xff\xfe not text\n\n")
        file.write(json.dumps(good).encode()[:40])
    append(path, known(1, seed=5).seen)
    loaded = Knowledge.load(path, SPACE, "acc")
    assert loaded.seen == (*known(2).seen, *known(1, seed=5).seen)
    assert loaded.notices == (f"{path}:3: 12 damaged lines are left out",)


def test_trials_of_another_space_are_left_out_with_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "k.jsonl"
    chance = np.random.default_rng(0)
    good = config(chance)
    others: list[dict[str, object]] = [
        good | {"opt": "lion"},
        good | {"lr": "fast"},
        {"lr": 0.1},
        good | {"layers": None},
    ]
    append(path, [seen(good), *(replace(seen(good), config=each) for each in others)])
    loaded = Knowledge.load(path, SPACE, "acc")
    assert [each.config for each in loaded.seen] == [good]
    assert loaded.notices == (f"{path}: 4 trials of another search space are left out",)


def test_a_run_is_kept_by_its_ledger(tmp_path: Path) -> None:
    """A simulated run at the profile's own speed: each pace is 1."""
    setting = Setting(trials=4)
    played = play(setting)
    report = build(setting.job(), played.entries)
    found = rows(report)
    assert [each.trial for each in found] == ["t00", "t01", "t02", "t03"]
    assert [each.pace for each in found] == pytest.approx([1.0] * 4)
    for each in found:
        trial = played.policy.trials[each.trial]
        assert each.history == trial.history
        assert (each.run, each.metric, each.failed) == ("r1", "score", False)
    append(tmp_path / "k.jsonl", found)
    loaded = Knowledge.load(tmp_path / "k.jsonl", report.job.experiment.space, "score")
    assert loaded.seen == tuple(
        replace(each, config=dict(each.config)) for each in found if "x" in each.config
    )


def test_the_pace_is_what_epochs_took_against_the_profile() -> None:
    setting = Setting(trials=4)
    slow = replace(setting, profile=setting.profile.slowed(1.5))
    played = play(slow)
    report = build(setting.job(), played.entries)
    assert [each.pace for each in rows(report)] == pytest.approx([1.5] * 4)
