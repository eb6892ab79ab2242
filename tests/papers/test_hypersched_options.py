"""HyperSched's rules as an experiment file changes them: each changes one thing and no other."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast.make import make_plan
from cloudtune.forecast.problem import build_problem
from cloudtune.model.plans import Limits
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import Trial
from cloudtune.runs.job import make_policy, read_choice
from cloudtune.strategies.base import Allocator, Go, Strategy, Task, View
from tests.builders import Setting, offer, play, profile

EXPERIMENT = """
name: rules
train: train.py:train
metric: {{name: score, mode: max}}
search: {{x: {{grid: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}}}}
trials: 10
epochs: {{min: 1, max: 64}}
eta: 2
strategy: {strategy}
limits: {{deadline: 1000s}}
cloud: {{provider: emulated, instances: [g5.xlarge], max_instances: 1}}
"""
EIGHT = offer(8, name="g5.xlarge")
CURVE = {float(width): 8 / width**0.8 for width in range(1, 9)}
SETTING = Setting(offer=EIGHT, profile=profile(CURVE, name="g5.xlarge"), max_instances=1)


def experiment(folder: Path, rules: str = "", name: str = "hypersched") -> Experiment:
    path = folder / "experiment.yaml"
    strategy = f"{{name: {name}, rules: {{{rules}}}}}" if rules else name
    path.write_text(EXPERIMENT.format(strategy=strategy))
    return Experiment.load(path)


class Observed:
    """What the strategy and the allocator of an experiment do, each situation for a rule."""

    def __init__(self, wanted: Experiment) -> None:
        self._wanted = wanted

    def fresh(self) -> tuple[Strategy, Allocator]:
        policy = make_policy(self._wanted, SETTING.rentables, Limits(1000.0))
        return policy.strategy, policy.allocator

    def view(self, left: float, *trials: TrialProgress, setups: tuple[float, ...] = ()) -> View:
        return cast(
            "View",
            SimpleNamespace(
                mode="max",
                trials={trial.id: trial for trial in trials},
                running=[trial for trial in trials if trial.status == "training"],
                seconds_left=left,
                setups=list(setups),
                limits=Limits(1000.0),
                gpus=8,
                free_gpus=0.0,
                rentables=SETTING.rentables,
            ),
        )

    def trial(self, name: str, epoch: int, metric: float, width: float = 1.0) -> TrialProgress:
        made = TrialProgress(Trial(name, {}), status="training", sessions=1, width=width)
        made.epoch, made.metric, made.epoch_seconds, made.offer = epoch, metric, 8.0, EIGHT
        made.seconds = 8.0 * epoch
        return made

    def all(self) -> dict[str, object]:
        return {
            "judged again between rungs": self._between_rungs(),
            "not good enough": self._not_good_enough(),
            "admitted, set-ups of 40 s": self._admitted(setups=(40.0,), left=20.0),
            "admitted, little time": self._admitted(left=10.0),
            "admitted, half of the time over": self._admitted(left=499.0),
            "gain, set-ups of 40 s": self._gain((40.0,)),
            "gain, none": self._gain(()),
            "begins with": self._first_width(),
            "has of 7 GPUs": self._share(),
        }

    def _between_rungs(self) -> object:
        strategy, _ = self.fresh()
        a, b, c = self.trial("a", 1, 0.9), self.trial("b", 1, 0.5), self.trial("c", 1, 0.95)
        view = self.view(900.0, a, b, c)
        strategy.on_result(view, b)
        strategy.on_result(view, a)
        a.epoch = 2
        strategy.on_result(view, a)  # the first at the next rung
        strategy.on_result(view, c)
        c.epoch = 2
        strategy.on_result(view, c)
        c.epoch, c.metric = 3, 0.1
        for number in range(3):
            strategy.on_result(view, self.trial(f"x{number}", 1, 0.99))
        return isinstance(strategy.on_result(view, c), Go)

    def _not_good_enough(self) -> object:
        strategy, _ = self.fresh()
        a, b = self.trial("a", 1, 0.9), self.trial("b", 1, 0.5)
        view = self.view(900.0, a, b)
        strategy.on_result(view, a)
        c = self.trial("c", 1, 0.1)
        strategy.on_result(view, b)
        decision = strategy.on_result(view, c)
        return None if isinstance(decision, Go) else decision.name

    def _admitted(self, left: float, setups: tuple[float, ...] = ()) -> bool:
        """Whether something new may start beside a trial that has trained 48 s, with eta 2."""
        strategy, _ = self.fresh()
        old = self.trial("a", 0, 0.9)
        for epoch in range(1, 7):
            old.epoch = epoch
            strategy.on_result(self.view(900.0, old), old)
        return bool(strategy.requests(self.view(left, old, setups=setups), 1))

    def _gain(self, setups: tuple[float, ...]) -> float:
        _, allocator = self.fresh()
        gain = cast("Any", allocator).gain
        return float(gain(self.view(100.0, setups=setups), SETTING.rentables[0], 2.0, 4.0))

    def _first_width(self) -> object:
        _, allocator = self.fresh()
        (width,) = cast("Any", allocator).widths(self.view(900.0), [Task(Trial("a", {}), 1)])
        return width

    def _share(self) -> float:
        """Return the width of the only trial, of 8 GPUs of which one is lost to it."""
        _, allocator = self.fresh()
        best = self.trial("a", 12, 0.9, width=2.0)
        view = self.view(900.0, best)
        cast("Any", view).gpus = 7
        allocator.resized(view, best)
        best.epoch = 30
        return allocator.resized(view, best)


@pytest.mark.parametrize(
    ("rules", "changed"),
    [
        ("use_pausing: true", {}),
        ("use_pausing: false", {"not good enough": "CUT"}),
        ("atom: 2", {"begins with": 2.0, "has of 7 GPUs": 6.0}),
        ("allocation_grid: 4", {"has of 7 GPUs": 4.0}),
        ("no_speculation: true", {"judged again between rungs": True}),
        (
            "ignore_overhead: true",
            {"admitted, set-ups of 40 s": False, "gain, set-ups of 40 s": 2**0.8},
        ),
        ("no_job_limit: true", {"admitted, little time": True}),
        ("fixed_exploration: true", {"admitted, little time": True}),
        (
            "fixed_exploration: true, exploration_ratio: 0.5",
            {"admitted, set-ups of 40 s": False, "admitted, half of the time over": False},
        ),
        ("assume_linear: true", {"gain, set-ups of 40 s": 0.6 * 2, "gain, none": 2.0}),
    ],
)
def test_h12_h16_h19_h20_rules(tmp_path: Path, rules: str, changed: dict[str, object]) -> None:
    before = Observed(experiment(tmp_path)).all()
    after = Observed(experiment(tmp_path, rules)).all()
    result = {name: value for name, value in after.items() if value != before[name]}
    assert result.keys() == changed.keys()
    for name, value in changed.items():
        assert result[name] == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("exploration_ratio: 0.5", "needs fixed_exploration: true"),
        ("atom: 0", "strategy.rules.atom"),
        ("use_pausing: 1", "strategy.rules.use_pausing: 1 is not true or false"),
        ("no_speculations: true", "Did you mean 'no_speculation'?"),
    ],
)
def test_an_unknown_rule_is_refused(tmp_path: Path, rules: str, message: str) -> None:
    with pytest.raises(CloudtuneError, match=r"experiment.yaml:9: ") as caught:
        experiment(tmp_path, rules)
    assert message in str(caught.value)


def test_rules_are_refused_where_nothing_has_any(tmp_path: Path) -> None:
    wanted = experiment(tmp_path, "atom: 2", "asha")
    with pytest.raises(UsageError, match=r"strategy.rules are HyperSched's, and asha with"):
        read_choice(wanted)
    other = experiment(tmp_path, "allocation_grid: 4", "asha, allocator: hypersched")
    assert read_choice(other).allocator == "hypersched"


def test_an_atom_that_was_not_measured_is_refused(tmp_path: Path) -> None:
    wanted = experiment(tmp_path, "atom: 9")
    with pytest.raises(UsageError, match=r"strategy\.rules\.atom: 9 GPUs weren't measured; 1, 2"):
        make_policy(wanted, SETTING.rentables, Limits(1000.0))


def test_h20_atom_of_two_gpus(tmp_path: Path) -> None:
    """Each trial begins with two GPUs and grows by two."""
    wanted = experiment(tmp_path, "atom: 2")
    played = play(
        SETTING.but(trials=10, metric=lambda number, epoch: number + epoch / 100),
        make_policy(wanted, SETTING.rentables, Limits(1000.0)),
    )
    assert {start.width for start in played.starts} <= {2.0, 4.0, 6.0, 8.0}
    assert [start.width for start in played.starts[:4]] == [2.0] * 4


def test_what_was_changed_is_shown_by_the_plan(tmp_path: Path) -> None:
    wanted = experiment(tmp_path, "atom: 2, no_speculation: true, use_pausing: false")
    assert str(wanted.strategy.rules) == "use_pausing: false, atom: 2, no_speculation: true"
    planned = make_plan(build_problem(wanted, [SETTING.profile]), Limits(1000.0), runs=1).plan
    assert planned.by == "hypersched (use_pausing: false, atom: 2, no_speculation: true)"
    assert experiment(tmp_path, "").to_json()["strategy"] == "hypersched"
    again = Experiment.from_json(wanted.to_json())
    assert again.strategy == wanted.strategy
