"""HyperSched's allocator: atoms for each running trial by its rank, and whether a resize pays.

Source: Liaw et al., "HyperSched: Dynamic Resource Reallocation for Model Development on a
Deadline" (SoCC 2019), by notes on its published code. The allocator suits a constant fleet: it
shares the present GPUs and requests no more.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from cloudtune.model.plans import Rentable
from cloudtune.model.progress import TrialProgress
from cloudtune.model.scaling import ScalingProfile
from cloudtune.model.trial import GPU_ROUNDING, TrialId, Width, rank_key
from cloudtune.papers.hypersched_rules import AS_PUBLISHED, Overhead, Switches
from cloudtune.strategies.base import ByWidth, Task, View

Spread: TypeAlias = Callable[[Sequence[float], int, np.random.Generator], Sequence[int]]

# Stands for infinite scores, whose differences aren't numbers.
_HUGE = 1e300


def _uniform(scores: Sequence[float], spare: int, _rng: np.random.Generator) -> Sequence[int]:
    """Deal the spare atoms one by one, best trial first, round and round."""
    share, rest = divmod(spare, len(scores))
    return [share + (rank < rest) for rank in range(len(scores))]


def _top_job(scores: Sequence[float], spare: int, _rng: np.random.Generator) -> Sequence[int]:
    """Give all spare atoms to the best trial."""
    return [spare, *[0] * (len(scores) - 1)]


def _random(scores: Sequence[float], spare: int, rng: np.random.Generator) -> Sequence[int]:
    """Give each spare atom to a trial drawn at random."""
    drawn = rng.integers(len(scores), size=spare)
    return [int(count) for count in np.bincount(drawn, minlength=len(scores))]


def _softmax(scores: Sequence[float], spare: int, _rng: np.random.Generator) -> Sequence[int]:
    """Share the spare atoms by the softmax of the scores, rounded down; the best gets the rest.

    The best is, as published, the trial with the greatest share at that point.
    """
    values = np.clip(np.asarray(scores, dtype=float), -_HUGE, _HUGE)
    weights = np.exp(values - values.max())
    shares = (weights / weights.sum() * spare).astype(int)
    shares[shares.argmax()] += spare - int(shares.sum())
    return [int(share) for share in shares]


def _none(scores: Sequence[float], _spare: int, _rng: np.random.Generator) -> Sequence[int]:
    """Leave the spare atoms idle."""
    return [0] * len(scores)


POLICIES: dict[str, Spread] = {
    "UNIFORM": _uniform,
    "TOP_JOB": _top_job,
    "RANDOM": _random,
    "SOFTMAX": _softmax,
    "NONE": _none,
}


def shared_out(
    policy: str, scores: Sequence[float], atoms: int, rng: np.random.Generator
) -> list[int]:
    """Return the atoms of each trial; `scores` are best first, and more is better.

    Every trial gets one atom, or only the best if there are too few; `policy` spreads the rest. The
    sum never exceeds `atoms`.
    """
    if not scores:
        return []
    first = [1 if rank < atoms else 0 for rank in range(len(scores))]
    spare = max(0, atoms - len(scores))
    return [a + b for a, b in zip(first, POLICIES[policy](scores, spare, rng), strict=True)]


def speed(profile: ScalingProfile, width: Width) -> float:
    """Return epochs per second at any width: interpolated, and clamped at the ends."""
    rates = [1.0 / profile.epoch_seconds(measured) for measured in profile.widths]
    return float(np.interp(width, profile.widths, rates))


class HyperSchedAllocator(ByWidth):
    """Shares the present GPUs, in atoms of several GPUs, whenever a trial reports.

    A trial starts with one atom. Its share depends on its rank by the last metric (`POLICIES`), is
    a multiple of the grid above that size, and is rounded down to a width of the profile; what
    remains goes to the best trial that can use it (ours: in the paper every width exists). A trial
    shrinks at once, and grows if `min_gain` times as much can be trained in the remaining time,
    less the overhead of the resize. After a restart a trial keeps its width for `recharge` results.
    """

    def __init__(
        self,
        *,
        policy: str = "UNIFORM",
        atom: Width = 1.0,
        seed: int = 0,
        switches: Switches = AS_PUBLISHED,
        min_gain: float = 1.1,
        recharge: int = 5,
    ) -> None:
        if policy not in POLICIES:
            names = ", ".join(POLICIES)
            raise ValueError(f"unknown allocation policy {policy!r}; choose one of {names}")
        self.name = "hypersched" if policy == "UNIFORM" else f"hypersched:{policy}"
        self._policy = policy
        self._atom = atom
        self._grid = switches.allocation_grid
        self._linear = switches.assume_linear
        self._overhead = Overhead(ignored=switches.ignore_overhead)
        self._min_gain = min_gain
        self._recharge = recharge
        self._rng = np.random.default_rng(seed)
        self._since: dict[TrialId, tuple[int, int]] = {}
        self._known: dict[TrialId, TrialProgress] = {}

    def min_width(self, view: View) -> Width:
        return self._atom

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        """Return one atom for new trials; trials that continue keep theirs."""
        trials = view.trials
        names = [task.trial.id for task in tasks]
        return [trials[name].width if name in trials else self._atom for name in names]

    def resized(self, view: View, trial: TrialProgress) -> Width:
        """Return the trial's share, if a resize is due and pays; otherwise its present width."""
        if self._recharges(trial):
            return trial.width
        rentable = self.resizable(view, trial)
        share = self._share(view, trial) or trial.width
        if share <= trial.width or self.gain(view, rentable, trial.width, share) > self._min_gain:
            return share
        return trial.width

    def resizable(self, view: View, trial: TrialProgress) -> Rentable:
        """Return the rentable that a trial trains on, with the profile's speeds."""
        return next(rentable for rentable in view.rentables if rentable.offer == trial.offer)

    def _recharges(self, trial: TrialProgress) -> bool:
        """Whether a trial restarted too few results ago to be resized."""
        session, first = self._since.get(trial.id, (0, 0))
        if session != trial.sessions:
            first = trial.epoch
            self._since[trial.id] = (trial.sessions, first)
        return trial.epoch - first + 1 <= self._recharge

    def _share(self, view: View, trial: TrialProgress) -> Width:
        """Return the trial's width if all GPUs were shared now; 0 if none is left for it."""
        live = {other.id: other for other in self._live(view)}
        keys = {name: rank_key(view.mode, other.metric) for name, other in live.items()}
        ranked = sorted(keys, key=lambda name: keys[name])
        scores = [-math.inf if keys[name][0] else -keys[name][1] for name in ranked]
        atoms = math.floor(view.gpus / self._atom + GPU_ROUNDING)
        shares = shared_out(self._policy, scores, atoms, self._rng)
        allowed = [self._steps(view, live[name]) for name in ranked]
        return self._fill_shares(shares, allowed, atoms)[ranked.index(trial.id)] * self._atom

    @staticmethod
    def _fill_shares(
        shares: Sequence[int], allowed: Sequence[Sequence[int]], most: int
    ) -> list[int]:
        """Return the shares rounded down to `allowed` atoms, with the remainder dealt out again.

        `allowed` are the atoms that each trial may have, ascending. The best trial takes as much of
        the remainder as it can, then the next.
        """
        given = []
        for share, steps in zip(shares, allowed, strict=True):
            affordable = [atoms for atoms in steps if atoms <= share]
            given.append(max(affordable, default=0))
        left = min(sum(shares), most) - sum(given)
        for rank, steps in enumerate(allowed):
            reach = [atoms for atoms in steps if given[rank] < atoms <= given[rank] + left]
            if reach and given[rank]:
                left -= max(reach) - given[rank]
                given[rank] = max(reach)
        return given

    def _steps(self, view: View, trial: TrialProgress) -> list[int]:
        """Return the atoms that a trial may have on its instance type, ascending.

        A lost trial may have those of any instance type.
        """
        places = [r for r in view.rentables if trial.offer in {None, r.offer}]
        widths = sorted({width for place in places for width in place.profile.widths})
        return [round(width / self._atom) for width in widths if self._is_share(width)]

    def _live(self, view: View) -> list[TrialProgress]:
        """Return the trials that train or are about to, including lost and moving ones."""
        live = {t.id: t for t in view.running if t.status != "stopping" or t.after == "waiting"}
        lost = {name: t for name, t in self._known.items() if t.status == "waiting"}
        self._known = {**live, **lost}
        return list(self._known.values())

    def _is_share(self, width: Width) -> bool:
        """Whether a width is a whole number of atoms on the grid."""
        atoms = round(width / self._atom)
        if atoms < 1 or abs(width - atoms * self._atom) > GPU_ROUNDING:
            return False
        return self._grid is None or atoms <= self._grid or atoms % self._grid == 0

    def gain(self, view: View, rentable: Rentable, width: Width, other: Width) -> float:
        """Return how many times as much could be trained by the deadline at another width."""
        left = view.seconds_left
        if left <= 0:
            return 0.0
        kept = 1.0 if left == math.inf else max(0.0, left - self._overhead.seconds(view)) / left
        return kept * self._speed(rentable, other) / self._speed(rentable, width)

    def _speed(self, rentable: Rentable, width: Width) -> float:
        return width if self._linear else speed(rentable.profile, width)
