"""Fluid's published code, and groups and games that it and ours decide: widths and promotions.

    git clone https://github.com/SymbioticLab/Fluid CLONE && git -C CLONE checkout 3598be4
    python -m tests.strategies.published_fluid CLONE

runs the published executor and scheduler in CLONE with a stand-in for the Ray of their time, and
writes what they decided to `fluid_games.txt`: a line a group, then a line a game.
"""

import contextlib
import heapq
import random
import string
import sys
from collections.abc import Sequence
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

DECISIONS = Path(__file__).with_name("fluid_games.txt")
GROUPS = 200
GAMES = 200
NARROWEST, WIDEST = 2, 4
"""As the published executor has them: its c is 1/2, so 1/c is 2."""


def heights(seed: int) -> list[float]:
    """Return the seconds of each trial of a group with a GPU each: the code counts only trials."""
    luck = random.Random(seed)
    return [luck.lognormvariate(0.0, 1.5) for _ in range(luck.randint(2, 12))]


class Game:
    """Trials with a GPU each are halved: `pace` is seconds of an epoch, `scores` are by epoch."""

    def __init__(self, seed: int) -> None:
        luck = random.Random(seed + 1_000_000)
        choices = [(2, 2), (2, 3), (3, 1), (3, 2), (4, 1), (4, 2)]
        self.eta, self.halvings = luck.choice(choices)
        self.count = self.eta**self.halvings
        self.first = 2
        self.last = self.first * self.count
        unit = luck.choice([0.2, 1.0, 5.0])
        speeds = [luck.choice([1, 1, 1, 8]) * luck.uniform(0.5, 4.0) for _ in range(self.count)]
        self.pace = [unit * speed for speed in speeds]
        self.scores = [[luck.random() for _ in range(self.last)] for _ in speeds]


def line(epochs: Sequence[tuple[int, float]]) -> str:
    """Return the epochs of a game as they end, each as the letter of its trial and the width."""
    return "".join(f"{string.ascii_lowercase[trial]}{width:g}" for trial, width in epochs)


# ---- the published code ---------------------------------------------------------------------


class _Module(ModuleType):
    """A module that has whatever is imported from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"PERSISTENT": None})  # of Checkpoint


class _Resources(NamedTuple):
    cpu: float
    gpu: float

    def subtract(self, other: "_Resources") -> "_Resources":
        return _Resources(self.cpu - other.cpu, self.gpu - other.gpu)

    def is_nonnegative(self) -> bool:
        return min(self) >= 0

    def gpu_total(self) -> float:
        return self.gpu


class _Trial:
    PENDING, RUNNING, PAUSED, TERMINATED = "PENDING", "RUNNING", "PAUSED", "TERMINATED"

    def __init__(self, number: int) -> None:
        self.trial_id = self.number = number
        self.status = self.PENDING
        self.config: dict[str, Any] = {}
        self.epoch = 0
        self.update_resources(custom_resources={}, extra_custom_resources={})

    def update_resources(self, **resources: Any) -> None:
        self.resources = SimpleNamespace(**resources)
        self.width = sum(len(gpus) for name, gpus in resources.items() if "custom" in name)


def load_published(clone: Path) -> list[Any]:
    """Return the modules `fluid.fluid_executor` and `fluid.scheduler`, with stand-ins for Ray."""
    names = "durable_trainable error logger ray_trial_executor resources result schedulers"
    names += " schedulers.trial_scheduler trainable trial trial_executor"
    stands: dict[str, dict[str, Any]] = {f"ray.tune.{name}": {} for name in names.split()}
    stands["ray.tune.resources"]["Resources"] = _Resources
    stands["ray.tune.trial"]["Trial"] = _Trial
    keys = {"TIME_THIS_ITER_S": "seconds", "TRAINING_ITERATION": "training_iteration"}
    stands["ray.tune.result"] = keys
    verdicts = SimpleNamespace(CONTINUE="CONTINUE", PAUSE="PAUSE", STOP="STOP")
    stands["ray.tune.schedulers.trial_scheduler"]["TrialScheduler"] = verdicts
    stands |= {"ray": {}, "ray.tune": {}, "ray.exceptions": {}, "ray.resource_spec": {}}
    stands["fluid"] = {"__path__": [str(clone / "fluid")]}
    stands["fluid.ray_custom_gpu_res"] = {"create_custom_gpu_res": lambda: None}
    for name, content in stands.items():
        sys.modules[name] = _Module(name)
        sys.modules[name].__dict__.update(content)
    return [import_module(f"fluid.{name}") for name in ("fluid_executor", "scheduler")]


def shares(module: Any, seed: int) -> str:
    """Return the widths that `FluidExecutor` has carried out once it has measured a group.

    It scales them to all GPUs in the end, which is undone: of each group one has the narrowest.
    """
    seconds = heights(seed)
    trials = [_Trial(number) for number in range(len(seconds))]
    executor = object.__new__(module.FluidExecutor)
    vars(executor).update(
        _avail_resources=_Resources(len(trials), len(trials)),
        _committed_resources=_Resources(0, 0),
        jobs_pending=[module.PendingJob(trial, None, True) for trial in trials],
        jobs_running={},
        trial_group_meta=[],
        trial_groups={},
        _dump_groups=lambda: None,
        _ensure_W=lambda plan, _meta: plans.append({name: it.gpu for name, it in plan.items()}),
    )
    plans: list[dict[int, float]] = []
    executor._detect_groups()
    (group,) = executor.trial_group_meta
    for trial in trials:
        group.perf.on_trial_result(trial.trial_id, {"time_this_iter_s": seconds[trial.number]})
    executor._fluid(group)
    unmeasured, measured = plans
    assert set(unmeasured.values()) == {1}
    unit = min(measured.values()) / NARROWEST
    return "".join(f"{measured[trial.trial_id] / unit:g}" for trial in trials)


class Band:
    """`FluidBandScheduler` in virtual time: early promotions, and idle GPUs (its stages 1 and 2).

    Where its code doesn't do what it has decided, it is done here: a trial that is to grow restarts
    at once, with all its GPUs and the new one (`_scale_up` returns None, and forgets all but the
    first); one that ends leaves all of them; and a GPU is in use from the start of a trial, not
    from its first result. The pause of all after their first epoch takes no time.
    """

    def __init__(self, module: Any, game: Game) -> None:
        self._game = game
        self._trials = [_Trial(number) for number in range(game.count)]
        self._gpus = [f"fluid_GPU_{number}" for number in range(game.count)]
        gpus = {"GPU": float(game.count), **dict.fromkeys(self._gpus, 1.0)}
        module.ray.cluster_resources = lambda: gpus
        module.time = SimpleNamespace(sleep=lambda _seconds: None)
        self._scheduler = module.FluidBandScheduler(
            max_res=game.last, metric="score", reduction_factor=game.eta
        )
        self._scheduler._s_max_1 = game.halvings + 1  # it rounds, so the first rung would be at 1
        self._runner = SimpleNamespace(
            has_resources=lambda _resources: True,
            stop_trial=self._stop,
            trial_executor=SimpleNamespace(unpause_trial=self._unpause),
        )
        self._ends: list[tuple[float, int]] = []  # of epochs

    def play(self) -> str:
        for trial in self._trials:
            self._scheduler.on_trial_add(self._runner, trial)
        for trial in iter(self._next, None):
            self._report(trial, 1)
        for trial in iter(self._next, None):
            self._scheduler._update_cur_resource_usage(trial, self._result(trial, 1))
            self._train(trial, 0.0)
        log = []
        while self._ends:
            now, number = heapq.heappop(self._ends)
            trial = self._trials[number]
            trial.epoch += 1
            log.append((number, trial.width))
            if trial.epoch > 1:
                self._report(trial, trial.epoch)
            if trial.status == _Trial.RUNNING:
                self._train(trial, now)
            while any(trial.status == _Trial.PENDING for trial in self._trials):
                self._train(self._next(), now)
        return line(log)

    def _next(self) -> Any:
        trial = self._scheduler.choose_trial_to_run(self._runner)
        if trial is not None:
            trial.status = _Trial.RUNNING
        return trial

    def _train(self, trial: _Trial, now: float) -> None:
        heapq.heappush(
            self._ends, (now + self._game.pace[trial.number] / trial.width, trial.number)
        )

    def _report(self, trial: _Trial, epoch: int) -> None:
        result = self._result(trial, epoch)
        action = self._scheduler.on_trial_result(self._runner, trial, result)
        if action == "STOP":
            self._stop(trial)
        elif action == "PAUSE":
            trial.status = _Trial.PAUSED
        if self._scheduler.update_res.get(trial):
            used = zip(self._gpus, self._scheduler.customized_gpu_wl, strict=True)
            self._scheduler.update_res[trial] = {gpu: 1 for gpu, by in used if trial in by}
            self._unpause(trial)

    def _result(self, trial: _Trial, epoch: int) -> dict[str, float]:
        score = self._game.scores[trial.number][epoch - 1]
        seconds = self._game.pace[trial.number] / max(1, trial.width)
        return {"training_iteration": epoch, "score": score, "seconds": seconds}

    def _unpause(self, trial: _Trial) -> None:
        trial.status = _Trial.PENDING

    def _stop(self, trial: _Trial) -> None:
        trial.status = _Trial.TERMINATED
        self._scheduler.on_trial_remove(self._runner, trial)
        for by in self._scheduler.customized_gpu_wl:
            by.pop(trial, None)


def main() -> None:
    executor, scheduler = load_published(Path(sys.argv[1]))
    with contextlib.redirect_stdout(StringIO()):  # it prints what it does
        lines = [shares(executor, seed) for seed in range(GROUPS)]
        lines += [Band(scheduler, Game(seed)).play() for seed in range(GAMES)]
    DECISIONS.write_text("".join(f"{text}\n" for text in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
