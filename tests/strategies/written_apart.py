"""BOHB's model and PBT, written apart: fed with what happened in a run, they say what is right.

They share nothing with the program but the seeds of chance. Halving, Hyperband and grids are in
`test_decisions.py`, ASHA is in `policy/test_promoted.py`.
"""

import math
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import optuna

from cloudtune.engine.ledger import Entry, MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld
from cloudtune.experiment.search_space import Categories, Domain, RandInt, Uniform
from cloudtune.model.commands import StartTrial
from cloudtune.model.events import EpochDone
from cloudtune.model.trial import EndReason, Trial
from cloudtune.policy.registry import ALLOCATORS, STRATEGIES
from cloudtune.policy.run import RunPolicy
from cloudtune.strategies.base import Sampler
from cloudtune.strategies.samplers.sampler import SpaceSampler
from tests.builders import Setting, by_name, level, offer, profile

FROM_A_QUARTER = {0.25: 28.0, 0.5: 15.0, 1.0: 8.0, 2.0: 4.4, 3.0: 3.2, 4.0: 2.6, 6.0: 2.1, 8.0: 1.8}
POPULATION = 8


def drawn_game(allocator: str, luck: random.Random) -> Setting:
    """Return instances of 4 or 8 GPUs, of sublinear speed, where a resize takes 0 or 2 seconds."""
    made = Setting(
        offer=offer(luck.choice([4, 8])),
        max_instances=luck.choice([1, 2]),
        profile=profile(FROM_A_QUARTER, start=1.0, resize=luck.choice([0.0, 2.0]), boot=0.0),
    )
    return made.but(allocator=lambda: ALLOCATORS[allocator].build(made.context()))


@dataclass(frozen=True)
class Exploit:
    """What a run did: `child` takes the place of `replaced`, from the checkpoint of `parent`."""

    replaced: str
    epoch: int
    parent: str
    child: str


class Breeder:
    """A sampler of n trials that notes which are explored, and after which result."""

    def __init__(self, count: int) -> None:
        self._left = deque(Trial(f"t{n:03d}", {"x": n}) for n in range(count))
        self._count = count
        self._reported = ("", 0)
        self.exploits: list[Exploit] = []

    def ask(self) -> Trial | None:
        return self._left.popleft() if self._left else None

    def more(self, trials: int) -> int:
        return 0

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        self._reported = (trial.id, epoch)

    def explore(self, parent: Trial) -> Trial:
        number = self._count + len(self.exploits)
        child = Trial(f"t{number:03d}", {"x": number})
        self.exploits.append(Exploit(*self._reported, parent.id, child.id))
        return child


@dataclass
class Population:
    """Truncation selection, asynchronous (Jaderberg et al., 2017, section 4.1.1 and algorithm 1).

    A place has the score that was last reported from it. Whoever is ready and in the worst quarter
    takes over from one of the best that still has epochs to go.
    """

    interval: int
    last: int
    scores: dict[str, float] = field(default_factory=dict)  # of whoever reported last at a place
    epochs: dict[str, int] = field(default_factory=dict)
    ready: dict[str, int] = field(default_factory=dict)  # when each is judged next
    unborn: dict[str, Exploit] = field(default_factory=dict)
    born: dict[str, Exploit] = field(default_factory=dict)  # clones without a result

    def begins(self, name: str, epoch: int) -> None:
        self.epochs[name] = epoch
        self.ready[name] = min(epoch + self.interval, self.last)
        if name in self.unborn:
            self.born[name] = self.unborn.pop(name)

    def reports(self, name: str, epoch: int, score: float) -> tuple[bool, set[str]]:
        """Return whether a decision is due, and whom the trial is to take over from, if anyone."""
        if name in self.born:
            self.scores.pop(self.born.pop(name).replaced, None)
        self.scores[name], self.epochs[name] = score, epoch
        if epoch == self.last:  # too late for those that were to be its clones
            for late in [n for n, item in self.unborn.items() if item.parent == name]:
                self.scores.pop(self.unborn.pop(late).replaced, None)
            return False, set()
        if epoch < self.ready[name]:
            return False, set()
        self.ready[name] = min(epoch + self.interval, self.last)
        by_score = sorted(self.scores, key=lambda item: self.scores[item])
        quarter = len(by_score) // 4
        if name not in by_score[:quarter]:
            return True, set()
        best = by_score[len(by_score) - quarter :]
        return True, {item for item in best if self.epochs[item] < self.last}


@dataclass(frozen=True)
class Bred:
    """A played run of PBT."""

    entries: tuple[Entry, ...]
    exploits: tuple[Exploit, ...]
    policy: RunPolicy
    interval: int
    last: int


def breed(allocator: str, seed: int, count: int, last: int) -> Bred:
    """Play populations of eight trials, of different speeds and crossing curves."""
    luck = random.Random(f"pbt {seed}")
    swings = [luck.uniform(-0.4, 0.4) for _ in range(97)]
    paces = [luck.uniform(0.5, 3.0) for _ in range(89)]

    def metric(config: Mapping[str, object], epoch: int) -> float:
        number = int(str(config["x"]))
        return level(number, epoch, seed) + swings[number % 97] * epoch / last

    def pace(config: Mapping[str, object], _epoch: int) -> float:
        return paces[int(str(config["x"])) % 89]

    sampler = Breeder(count)
    game = drawn_game(allocator, luck)
    policy, entries = played_with(game, "pbt", last, 3, sampler, metric, pace)
    return Bred(entries, tuple(sampler.exploits), policy, max(1, last // 10), last)


def played_with(
    game: Setting, name: str, last: int, eta: int, sampler: Sampler, metric: Any, pace: Any
) -> tuple[RunPolicy, tuple[Entry, ...]]:
    policy = game.policy(by_name(name, max_epochs=last, eta=eta), sampler)
    ledger = MemoryLedger()
    run(policy, SimWorld(game.rentables, "score", metric, game.seed, pace), ledger)
    assert policy.ending is EndReason.DONE
    return policy, tuple(ledger.entries)


def pbt_decisions(result: Bred) -> tuple[int, int]:
    """Return how often a member was judged or a clone begun, and how often not as it should."""
    done = {(item.replaced, item.epoch): item for item in result.exploits}
    children = {item.child: item for item in result.exploits}
    fresh, count, differing = 0, 0, 0
    apart = Population(result.interval, result.last)
    for entry in result.entries:
        event = entry.event
        if isinstance(event, EpochDone):
            name = event.session.partition(".")[0]
            due, parents = apart.reports(name, event.epoch, event.metrics["score"])
            exploit = done.pop((name, event.epoch), None)
            count += due
            if exploit is None:
                differing += bool(parents)
            else:
                differing += not due or exploit.parent not in parents
                differing += result.policy.trials[name].status != "cut"
                apart.unborn[exploit.child] = exploit
        for command in entry.commands:
            if not isinstance(command, StartTrial) or command.trial in apart.epochs:
                continue
            name, count = command.trial, count + 1
            if name in apart.unborn:
                parent = children[name].parent
                differing += command.checkpoint != f"sim://{parent}/{apart.epochs[parent]}"
            else:
                if fresh % POPULATION == 0:
                    apart = Population(result.interval, result.last)
                fresh += 1
                differing += command.start_epoch != 0
            apart.begins(name, command.start_epoch)
    return count, differing + len(done)


SPACE: dict[str, Domain] = {
    "x": Uniform(0.0, 100.0),
    "n": RandInt(1, 20),
    "kind": Categories(("a", "b", "c")),
}


class Noted(SpaceSampler):
    """A sampler of the space that notes requests and results, in order."""

    def __init__(self, seed: int, most: int, random_fraction: float) -> None:
        super().__init__(SPACE, "tpe", seed=seed, most=most, random_fraction=random_fraction)
        self.steps: list[tuple[Trial, int, float | None]] = []

    def ask(self) -> Trial | None:
        trial = super().ask()
        if trial is not None:
            self.steps.append((trial, 0, None))
        return trial

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        self.steps.append((trial, epoch, value))
        super().tell(trial, epoch, value)


class ModelApart:
    """Falkner et al. (2018), algorithm 2, on Optuna's TPE and in Optuna's own words.

    A third of the asks is random. Else the model is of the highest epoch that has two results more
    than there are parameters; whoever hasn't come there counts as still running.
    """

    def __init__(self, seed: int, random_fraction: float) -> None:
        self.seed, self.random_fraction = seed, random_fraction
        self.chance = random.Random(f"{seed}/random fraction")
        self.uniform = optuna.samplers.RandomSampler(seed)
        self.results: dict[int, dict[str, float]] = {}
        self.params: dict[str, dict[str, Any]] = {}
        self.epoch, self.study, self.numbers = 0, _study(0), dict[str, int]()
        self.asked: optuna.Trial | None = None

    def ask(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the model proposes, and what."""
        if self.chance.random() >= self.random_fraction:
            self._climb()
            if self.epoch:
                self.asked = self.study.ask()
                return True, _suggest(self.asked)
        return False, _suggest(optuna.create_study(sampler=self.uniform).ask())

    def begins(self, name: str, params: dict[str, Any]) -> None:
        self.params[name] = params
        if self.asked is not None:
            self.numbers[name], self.asked = self.asked.number, None
        elif self.epoch:
            self._add(name, None)

    def tell(self, name: str, epoch: int, value: float) -> None:
        self.results.setdefault(epoch, {})[name] = value
        if epoch == self.epoch:
            self.study.tell(self.numbers[name], value)

    def _climb(self) -> None:
        enough = [e for e, result in self.results.items() if len(result) >= len(SPACE) + 2]
        if max(enough, default=0) <= self.epoch:
            return
        self.epoch = max(enough)
        self.study = _study((self.seed * 1_000_003 + self.epoch) % 2**32)
        self.numbers = {}
        here = self.results[self.epoch]
        for name, value in here.items():
            self._add(name, value)
        for name in self.params:
            if name not in here:
                self._add(name, None)

    def _add(self, name: str, value: float | None) -> None:
        state = optuna.trial.TrialState
        made = optuna.trial.create_trial(
            state=state.RUNNING if value is None else state.COMPLETE,
            params=self.params[name],
            distributions=DISTRIBUTIONS,
            value=value,
        )
        self.numbers[name] = len(self.study.trials)
        self.study.add_trial(made)


DISTRIBUTIONS: dict[str, Any] = {
    "x": optuna.distributions.FloatDistribution(0.0, 100.0),
    "n": optuna.distributions.IntDistribution(1, 19),
    "kind": optuna.distributions.CategoricalDistribution(("a", "b", "c")),
}


def _study(seed: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(n_startup_trials=1, seed=seed)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _suggest(trial: optuna.Trial) -> dict[str, Any]:
    x, n = trial.suggest_float("x", 0.0, 100.0), trial.suggest_int("n", 1, 19)
    return {"x": x, "n": n, "kind": trial.suggest_categorical("kind", ["a", "b", "c"])}


@dataclass(frozen=True)
class Modelled:
    """A played run of BOHB: the steps of its sampler, and how far each trial came."""

    seed: int
    steps: tuple[tuple[Trial, int, float | None], ...]
    configs: tuple[Mapping[str, Any], ...]
    epochs: tuple[int, ...]


def peak_metric(config: Mapping[str, Any], epoch: int) -> float:
    """Return a metric that is best near x = 70, n = 5 and kind b; some are slow to show it."""
    off = abs(config["x"] - 70) / 100 + abs(config["n"] - 5) / 40 + 0.2 * (config["kind"] != "b")
    return float(1 - off + math.sin(config["x"] + config["n"]) / (2 + epoch))


def play_model(strategy: str, allocator: str, seed: int, count: int, eta: int = 3) -> Modelled:
    """Play BOHB with its model over a space of three parameters.

    At most six train at once, so that results are there before the last configuration is asked for.
    """
    game = drawn_game(allocator, random.Random(f"{strategy} {seed}")).but(max_concurrent=6)
    sampler = Noted(seed, count, STRATEGIES[strategy].random_share or 0.0)

    def pace(config: Mapping[str, object], _epoch: int) -> float:
        return 0.5 + int(str(config["n"])) / 8

    policy, _ = played_with(game, strategy, 9, eta, sampler, peak_metric, pace)
    trials = [policy.trials[name] for name in sorted(policy.trials)]
    ends = tuple(max(trial.history, default=0) for trial in trials)
    return Modelled(seed, tuple(sampler.steps), tuple(t.trial.config for t in trials), ends)


def model_decisions(result: Modelled, random_fraction: float = 1 / 3) -> tuple[int, int, int]:
    """Return the configurations asked for, how many are the model's, how many are others."""
    apart = ModelApart(result.seed, random_fraction)
    count = by_model = differing = 0
    for trial, epoch, value in result.steps:
        if value is not None:
            apart.tell(trial.id, epoch, value)
            continue
        models, params = apart.ask()
        count, by_model = count + 1, by_model + models
        differing += not _alike(params, trial.config)
        apart.begins(trial.id, dict(trial.config))
    return count, by_model, differing


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    close = math.isclose(one["x"], other["x"], rel_tol=1e-6)
    return close and all(one[name] == other[name] for name in ("n", "kind"))
