"""HyperSched's published code, and games that it and ours play: who trains, and until when.

    git clone https://github.com/ucbrise/hypersched CLONE && git -C CLONE checkout 8b5435e
    python -m tests.strategies.published_hypersched CLONE

runs the published scheduler in CLONE with a stand-in for the Ray of its time, and writes what it
decided to `hypersched_games.txt`, a line a game. The code has no licence, so it isn't kept here.
"""

import random
import string
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

GAMES = Path(__file__).with_name("hypersched_games.txt")
COUNT = 400
_STEPS = 120


class Player(Protocol):
    """A scheduler of `count` trials, named a, b …, at one GPU each."""

    def next(self, now: float) -> str:
        """Return the trial that begins or goes on in a free place; "" for none."""

    def result(self, trial: str, epoch: int, score: float, took: "Took", now: float) -> bool:
        """Take a result; says whether the trial trains on."""


class Took(SimpleNamespace):
    """Seconds of a trial: of this `epoch`, of all epochs so far (`total`), of its last `setup`."""

    epoch: float
    total: float
    setup: float


def rules(seed: int) -> dict[str, Any]:
    """Return the rules of a game: trials, places, eta, first rung, last epoch, deadline."""
    luck = random.Random(seed)
    last = luck.choice([9, 16, 27])
    return {
        "count": luck.randint(3, 12),
        "places": luck.randint(1, 3),
        "eta": luck.choice([2, 3, 4]),
        "first": luck.choice([1, 2]),
        "last": last,
        "deadline": luck.choice([1e6, luck.uniform(3.0, 8.0) * last]),
    }


def names(count: int) -> str:
    return string.ascii_lowercase[:count]


def play(player: Player, seed: int) -> str:
    """Play a game; return which trials began ("c") and which left their place ("C"), in order."""
    luck = random.Random(seed + 1_000_000)
    game = rules(seed)
    speed = {name: luck.uniform(0.5, 2.0) for name in names(game["count"])}
    setup: dict[str, float] = {}
    epochs = dict.fromkeys(speed, 0)
    total = dict.fromkeys(speed, 0.0)
    training: list[str] = []
    moves: list[str] = []
    now = 0.0
    for _ in range(_STEPS):
        while len(training) < game["places"] and (name := player.next(now)):
            training.append(name)
            setup[name] = luck.uniform(0.1, 1.0)
            moves.append(name)
        if not training:
            break
        name = luck.choice(training)
        seconds = speed[name] * luck.uniform(0.9, 1.1)
        now += seconds / len(training)
        epochs[name] += 1
        total[name] += seconds
        took = Took(epoch=seconds, total=total[name], setup=setup[name])
        if not player.result(name, epochs[name], luck.choice(range(100)) / 100, took, now):
            training.remove(name)
            moves.append(name.upper())
    return "".join(moves)


# ---- the published code ---------------------------------------------------------------------


class _Fifo:
    """Ray 0.7's FIFOScheduler: the first that is pending, then the first that is paused."""

    def choose_trial_to_run(self, runner: Any) -> Any:
        for status in ("PENDING", "PAUSED"):
            for trial in runner.get_trials():
                if trial.status == status:
                    return trial
        return None


class _Trial:
    PENDING, RUNNING, PAUSED = "PENDING", "RUNNING", "PAUSED"
    TERMINATED, ERROR = "TERMINATED", "ERROR"

    def __init__(self, name: str) -> None:
        self.trial_id = name
        self.status = self.PENDING
        self.config: dict[str, Any] = {}
        self.resources = None


class _AsDecided:
    """An allocator that leaves each trial its atom."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def populate_if_needed(self, _trials: Any) -> None:
        pass

    def on_result(self, _runner: Any, _trial: Any, decision: str, *, execute: bool) -> str:
        del execute
        return decision

    def get_proposed_atoms(self, _trial: Any) -> int:
        return 1

    get_current_atoms = get_proposed_atoms

    def try_execute_update(self, _trial: Any, _runner: Any) -> None:
        pass


def load_published(clone: Path) -> Any:
    """Return the published module `hypersched.tune.hypersched`, with stand-ins for what it uses."""
    scheduler = SimpleNamespace(CONTINUE="CONTINUE", PAUSE="PAUSE", STOP="STOP")
    stands: dict[str, dict[str, Any]] = {
        "ray": {},
        "ray.tune": {},
        "ray.tune.trial": {"Trial": _Trial},
        "ray.tune.schedulers": {"FIFOScheduler": _Fifo, "TrialScheduler": scheduler},
        "hypersched": {"__path__": [str(clone / "hypersched")]},
        "hypersched.tune": {"__path__": [str(clone / "hypersched/tune")]},
        "hypersched.tune.dyn_allocator": {"DynamicAllocator": _AsDecided},
    }
    for name, content in stands.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        sys.modules[name] = module
    from hypersched.tune import hypersched  # type: ignore[import-not-found]

    return hypersched


class Published:
    def __init__(self, module: Any, seed: int) -> None:
        game = rules(seed)
        self._module = module
        self._clock = SimpleNamespace(time=lambda: 0.0)
        module.time = self._clock
        self._trials = [_Trial(name) for name in names(game["count"])]
        self._runner = SimpleNamespace(
            get_trials=lambda: self._trials, has_resources=lambda _: True
        )
        self._scheduler = module.HyperSched(
            game["places"],
            deadline=game["deadline"],
            grace_period=game["first"],
            reduction_factor=game["eta"],
            max_t=game["last"],
            metric="score",
        )

    def next(self, now: float) -> str:
        self._clock.time = lambda: now
        trial = self._scheduler.choose_trial_to_run(self._runner)
        if trial is None:
            return ""
        trial.status = _Trial.RUNNING
        return str(trial.trial_id)

    def result(self, name: str, epoch: int, score: float, took: Took, now: float) -> bool:
        self._clock.time = lambda: now
        (trial,) = (it for it in self._trials if it.trial_id == name)
        seconds = {"time_this_iter_s": took.epoch, "time_total_s": took.total}
        reported = {"training_iteration": epoch, "score": score, "setup_time": took.setup}
        action = self._scheduler.on_trial_result(
            self._runner, trial, {**reported, **seconds, "atoms": 1}
        )
        trial.status = {"PAUSE": _Trial.PAUSED, "STOP": _Trial.TERMINATED}.get(action, trial.status)
        return bool(action == "CONTINUE")


def main() -> None:
    module = load_published(Path(sys.argv[1]))
    games = [play(Published(module, seed), seed) for seed in range(COUNT)]
    GAMES.write_text("".join(f"{game}\n" for game in games), encoding="utf-8")


if __name__ == "__main__":
    main()
