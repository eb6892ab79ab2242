"""Synchronous successive halving, decided as results come in."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cloudtune.model.plans import Stage
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import EndReason, Mode, Trial, TrialId, rank_key
from cloudtune.strategies.base import Decision, Go, Sampler, Task, TrialGroup, Verdict, View
from cloudtune.strategies.rungs import NewTrials, at_rest, cap_epoch, rung_epochs


@dataclass(frozen=True)
class SuccessiveHalving:
    """Train all trials to the first rung, keep the best 1/eta, and so on to `max_epochs`.

    Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
    Optimization" (AISTATS 2016). Rungs are at min_epochs * eta**k and at max_epochs; at least one
    trial always continues.
    """

    trials: int
    min_epochs: int
    max_epochs: int
    eta: int
    mode: Mode

    def stages(self) -> tuple[Stage, ...]:
        """Return one stage per rung."""
        stages: list[Stage] = []
        trials = self.trials
        begin = 0
        end = self.min_epochs
        while begin < self.max_epochs:
            end = min(end, self.max_epochs)
            stages.append(Stage(trials, begin, end))
            trials = max(1, trials // self.eta)
            begin = end
            end = end * self.eta
        return tuple(stages)

    def promote(self, stage: int, results: Mapping[TrialId, float | None]) -> tuple[TrialId, ...]:
        """Return the best of the rung, as many as the next stage takes; ties by trial id."""
        stages = self.stages()
        return (
            self.rank_trials(results)[: stages[stage + 1].trials] if stage + 1 < len(stages) else ()
        )

    def rank_trials(self, results: Mapping[TrialId, float | None]) -> tuple[TrialId, ...]:
        """Return all trials of a rung, best first; ties by trial id."""
        return tuple(sorted(results, key=lambda name: (rank_key(self.mode, results[name]), name)))


@dataclass(frozen=True)
class JoinedHalving:
    """A successive halving of new trials, which older ones join on the way.

    Until then the new trials compete among themselves, from epoch 0; from then on all compete at
    each rung. `joining` has, by stage number, the trials that are trained to its begin or further.
    """

    newcomers: SuccessiveHalving
    joining: Mapping[int, tuple[TrialId, ...]]

    def stages(self) -> tuple[Stage, ...]:
        stages: list[Stage] = []
        trials = self.newcomers.trials
        for number, stage in enumerate(self.newcomers.stages()):
            trials += len(self.joining.get(number, ()))
            stages.append(Stage(trials, stage.start_epoch, stage.end_epoch))
            trials = max(1, trials // self.newcomers.eta)
        return tuple(stages)

    def promote(self, stage: int, results: Mapping[TrialId, float | None]) -> tuple[TrialId, ...]:
        """Return the best of the rung, and the trials that join there."""
        stages = self.stages()
        if stage + 1 >= len(stages):
            return ()
        joining = self.joining.get(stage + 1, ())
        ranked = self.newcomers.rank_trials(results)
        return (*ranked[: stages[stage + 1].trials - len(joining)], *joining)


@dataclass
class _Rung:
    """The trials that train for one rung of a bracket, and the results there."""

    places: int
    entered: int = 0
    awaited: set[TrialId] = field(default_factory=set)
    results: dict[TrialId, float | None] = field(default_factory=dict)


class Bracket:
    """A successive halving: `trials` trials to the first rung, the best 1/eta to each next one.

    A rung is decided when all its trials have reported or failed. Of the n trials that began the
    rung the best floor(n / eta) continue, at least one, however many failed; ties by trial id. A
    trial that reached its own last epoch keeps its place among the best, though it can't continue.

    A trial that will be among the best even if all pending ones do better continues at once, over
    several undecided rungs if possible (as in Fluid's code: early promotion). The same trials
    continue; some do so sooner.
    """

    def __init__(
        self, name: str, *, trials: int, epochs: Sequence[int], eta: int, mode: Mode
    ) -> None:
        self.name = name
        self.level = 0  # of the first rung that isn't decided
        self.over = False
        self._epochs = tuple(epochs)
        self._eta = eta
        self._mode = mode
        self._rungs = self._of_size(trials)
        self._trials: dict[TrialId, Trial] = {}
        self._heading: dict[TrialId, int] = {}  # the rung that each trains for, or rests at
        self._ready: dict[TrialId, Trial] = {}  # in order; begun ones leave at the next look
        self._losers: list[TrialId] = []

    def _of_size(self, trials: int) -> list[_Rung]:
        rungs = [_Rung(trials)]
        for _ in self._epochs[1:]:
            rungs.append(_Rung(max(1, rungs[-1].places // self._eta)))
        return rungs

    def groups(self, tasks: Sequence[Task]) -> list[TrialGroup]:
        """Return tasks by the rung that they train for."""
        by_level: dict[int, list[Task]] = {}
        for task in tasks:
            by_level.setdefault(self._heading[task.trial.id], []).append(task)
        return [
            TrialGroup(f"{self.name}, rung {level}", tuple(by_level[level]))
            for level in sorted(by_level)
        ]

    @property
    def wants(self) -> int:
        """The number of new trials that it still takes."""
        return self._rungs[0].places - len(self._trials) if self.level == 0 else 0

    @property
    def idle(self) -> bool:
        """Whether the bracket waits for none of its trials."""
        return not self._rungs[self.level].awaited

    def tasks(self, view: View, room: int, ask: Callable[[], Trial | None]) -> tuple[Task, ...]:
        """Return the tasks that may begin: promoted trials, then new ones."""
        offered = self._offers(view, max(room, view.lookahead))
        while len(offered) < room and self.wants > 0:
            trial = ask()
            if trial is None:
                self.close()
                break
            self._trials[trial.id] = trial
            self._enter(trial.id, 0)
            offered.append(trial)
        return tuple(Task(trial, self._goal(trial)) for trial in offered)

    def _enter(self, trial: TrialId, level: int) -> None:
        self._heading[trial] = level
        self._rungs[level].entered += 1
        self._rungs[level].awaited.add(trial)
        self._ready[trial] = self._trials[trial]

    def _offers(self, view: View, most: int) -> list[Trial]:
        offered: list[Trial] = []
        started: list[TrialId] = []
        for name, trial in self._ready.items():
            if len(offered) == most:
                break
            progress = view.trials.get(name)
            if progress is None or progress.status in {"parked", "at rung"}:
                offered.append(trial)
            elif progress.status != "stopping":
                started.append(name)
        for name in started:
            del self._ready[name]
        return offered

    def _goal(self, trial: Trial) -> int:
        return cap_epoch(trial, self._epochs[self._heading[trial.id]])

    def report(self, trial: TrialProgress) -> Decision:
        """Record an epoch; a trial that has reached the rung waits until the rung is decided."""
        self._ready.pop(trial.id, None)
        if trial.epoch < self._goal(trial.trial):
            return Go(self._goal(trial.trial))
        rung = self._rungs[self._heading[trial.id]]
        if trial.id in rung.awaited:
            rung.awaited.remove(trial.id)
            rung.results[trial.id] = trial.metric
            self._decide()
        last = cap_epoch(trial.trial, self._epochs[-1])
        return Verdict.FINISH if trial.epoch >= last else Verdict.HOLD

    def drop(self, trial: TrialId) -> None:
        """Record that a trial failed; if it was promoted, it keeps that place."""
        self._ready.pop(trial, None)
        rung = self._rungs[self._heading[trial]]
        rung.awaited.discard(trial)
        rung.results.pop(trial, None)
        self._decide()

    def close(self) -> None:
        """Continue with the present trials: there are no more."""
        if self.wants:
            first = self._rungs[0]
            self._rungs = self._of_size(len(self._trials))
            self._rungs[0] = replace(first, places=len(self._trials))
            self._decide()

    def losers(self) -> list[TrialId]:
        """Return the trials that lost since the last call."""
        losers = self._losers
        self._losers = []
        return losers

    def _decide(self) -> None:
        """Begin the next rung with the best of this one, once all its trials have reported."""
        while not (self.wants or self.over):
            if not self.idle:
                self._promote_early()
                return
            self._promote(self.level)
            ranked = self._rank(self.level)
            self._losers += [name for name in ranked if self._heading[name] == self.level]
            first = [name for name in ranked if name in self._ready]
            self._ready = {name: self._trials[name] for name in (*first, *self._ready)}
            self.level += 1
            after = self._rungs[self.level :]
            self.over = not after or not (after[0].awaited or after[0].results)

    def _promote_early(self) -> None:
        """Let those go on that no other trial can push out of the best any more."""
        for level in range(self.level, len(self._rungs)):
            self._promote(level)

    def _promote(self, level: int) -> None:
        """Let those go on that are among the best of a rung, whatever is still to come there."""
        if level + 1 == len(self._rungs):
            return
        rung, following = self._rungs[level : level + 2]
        to_come = len(rung.awaited) + (rung.places - rung.entered if level > self.level else 0)
        sure = following.places - to_come
        if sure <= following.entered:
            return
        epoch = self._epochs[level]
        for name in self._rank(level)[:sure]:
            if self._heading[name] == level and cap_epoch(self._trials[name], epoch + 1) > epoch:
                self._enter(name, level + 1)

    def _rank(self, level: int) -> list[TrialId]:
        results = self._rungs[level].results
        return sorted(results, key=lambda name: (rank_key(self._mode, results[name]), name))


class Brackets:
    """Plays brackets, each synchronous in itself; a subclass says when the next one begins."""

    anytime = True
    reason: EndReason | None = None

    def __init__(self, sampler: Sampler) -> None:
        self._new = NewTrials(sampler)
        self._playing: list[Bracket] = []
        self._of: dict[TrialId, Bracket] = {}
        self._begun = 0

    def more(self, view: View, trials: int) -> str:
        """Try more trials, in brackets of their own; returns why there aren't as many."""
        return self._new.more(trials)

    def _next(self) -> Bracket | None:
        """Return the bracket that may begin now, though others are played; None if none may."""
        raise NotImplementedError

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return the tasks that may begin, the oldest bracket's first."""
        groups: list[TrialGroup] = []
        for bracket in self._in_turn(view):
            tasks = bracket.tasks(view, room, lambda: self._new.take(view))
            groups += bracket.groups(tasks)
            self._of.update((task.trial.id, bracket) for task in tasks)
            room -= len(tasks)
            if room <= 0:
                break
        return groups

    def _in_turn(self, view: View) -> Iterator[Bracket]:
        """Yield the brackets that are played, and new ones for as long as there is room."""
        yield from self._playing
        while not self._new.dry(view) and (bracket := self._next()) is not None:
            self._begun += 1
            self._playing.append(bracket)
            yield bracket

    def on_result(self, view: View, trial: TrialProgress) -> Decision:
        self._new.learn(trial)
        return self._of[trial.id].report(trial)

    def on_failure(self, view: View, trial: TrialProgress) -> None:
        """Learn that a trial failed; its rung waits for it no longer."""
        self._new.learn_failure(trial)
        self.on_finish(view, trial)

    def on_finish(self, view: View, trial: TrialProgress) -> None:
        """Learn that a trial has ended; its rung waits for it no longer."""
        self._of[trial.id].drop(trial.id)

    def preempt(self, view: View) -> Mapping[TrialId, Verdict]:
        """Return the losers of rungs that have been decided."""
        for bracket in self._playing:
            if bracket.wants and bracket.idle and self._new.dry(view):
                bracket.close()
        losers = [name for bracket in self._playing for name in bracket.losers()]
        self._playing = [bracket for bracket in self._playing if not bracket.over]
        return dict.fromkeys(losers, Verdict.CUT)

    def wake_at(self, view: View) -> float | None:
        """Return None: the strategy decides only at results."""
        return None

    def done(self, view: View) -> bool:
        """Whether every bracket is over and there are no trials for another."""
        if self._playing or not at_rest(view):
            return False
        return self._new.dry(view) or self._next() is None


class Halving(Brackets):
    """Successive halving of `trials`; with `repeat` again and again, while there are new ones.

    Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
    Optimization" (AISTATS 2016). The rungs and which go on are `SuccessiveHalving`'s.
    """

    name = "sha"

    def __init__(
        self,
        sampler: Sampler,
        *,
        trials: int,
        min_epochs: int,
        max_epochs: int,
        eta: int,
        mode: Mode,
        repeat: bool = False,
    ) -> None:
        super().__init__(sampler)
        self.anytime = repeat
        self._sizes = [trials]
        self._epochs = rung_epochs(min_epochs, max_epochs, eta)
        self._eta = eta
        self._mode = mode

    def _next(self) -> Bracket | None:
        if self._playing or (self._begun >= len(self._sizes) and not self.anytime):
            return None
        return Bracket(
            f"bracket {self._begun}",
            trials=self._sizes[0 if self.anytime else self._begun],
            epochs=self._epochs,
            eta=self._eta,
            mode=self._mode,
        )

    def more(self, view: View, trials: int) -> str:
        """Try more trials in a bracket of their own, after the one before."""
        self._sizes.append(trials)
        return super().more(view, trials)
