"""Synchronous successive halving, decided as results come in."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cloudtune.model.plans import Stage
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import EndReason, Mode, Trial, TrialId, rank_key
from cloudtune.strategies.base import Decision, Go, Sampler, Task, TrialGroup, Verdict, View
from cloudtune.strategies.rungs import NewTrials, at_rest, capped, rung_epochs


@dataclass(frozen=True)
class SuccessiveHalving:
    """Train all trials to the first rung, keep the best 1/eta, and so on to `max_epochs`.

    Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
    Optimization" (AISTATS 2016). Rungs stand at min_epochs * eta**k and at max_epochs; at least
    one trial always goes on.
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
        """Return the best of the rung, as many as the next stage takes; ties go by trial id."""
        stages = self.stages()
        return self.ranked(results)[: stages[stage + 1].trials] if stage + 1 < len(stages) else ()

    def ranked(self, results: Mapping[TrialId, float | None]) -> tuple[TrialId, ...]:
        """Return all trials of a rung, the best first; ties go by trial id."""
        return tuple(sorted(results, key=lambda name: (rank_key(self.mode, results[name]), name)))


@dataclass(frozen=True)
class JoinedHalving:
    """A successive halving whose newcomers catch up with others, which join them on the way.

    Until then the newcomers are halved among themselves, from epoch 0; from then on all compete at
    each rung. `joining` has, by the stage's number, the trials trained to its begin or further.
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
        ranked = self.newcomers.ranked(results)
        return (*ranked[: stages[stage + 1].trials - len(joining)], *joining)


class Bracket:
    """A successive halving: `trials` trials to the first rung, the best 1/eta to each next.

    A rung is decided when all its trials have reported or failed. Of n trials that began the rung
    the best floor(n / eta) go on, at least one, however many failed; ties go by trial id. A trial
    that reached its own last epoch keeps its place among the best, though it can't train on.

    A trial that will be among the best even if all that the rung waits for do better goes on at
    once (as in Fluid's code: early promotion). The same trials go on; some go on sooner.
    """

    def __init__(
        self, name: str, *, trials: int, epochs: Sequence[int], eta: int, mode: Mode
    ) -> None:
        self.name = name
        self.level = 0
        self.over = False
        self._size = trials  # of the rung
        self._epochs = tuple(epochs)
        self._eta = eta
        self._mode = mode
        self._trials: dict[TrialId, Trial] = {}
        self._awaited: set[TrialId] = set()
        self._results: dict[TrialId, float | None] = {}
        self._ready: dict[TrialId, Trial] = {}  # in order; begun ones leave when they are seen
        self._losers: list[TrialId] = []
        self._early: set[TrialId] = set()  # that go on before the rung is decided
        self._ahead: dict[TrialId, float | None] = {}  # and their results at the next one
        self._gone: set[TrialId] = set()  # and failed on the way there

    def groups(self, tasks: Sequence[Task]) -> list[TrialGroup]:
        """Return tasks by the rung that they train for: early ones train for the next."""
        groups = []
        for level in (self.level, self.level + 1):
            early = level > self.level
            of = tuple(task for task in tasks if (task.trial.id in self._early) is early)
            if of:
                groups.append(TrialGroup(f"{self.name}, rung {level}", of))
        return groups

    @property
    def wants(self) -> int:
        """How many new trials it still takes."""
        return self._size - len(self._trials) if self.level == 0 and not self.over else 0

    @property
    def idle(self) -> bool:
        """Whether the bracket waits for none of its trials."""
        return not self._awaited

    def tasks(self, view: View, room: int, ask: Callable[[], Trial | None]) -> tuple[Task, ...]:
        """Return what may begin of the current rung: its trials, and then new ones."""
        offered = self._offers(view, max(room, view.lookahead))
        while len(offered) < room and self.wants > 0:
            trial = ask()
            if trial is None:
                self.close()
                break
            self._trials[trial.id] = self._ready[trial.id] = trial
            self._awaited.add(trial.id)
            offered.append(trial)
        return tuple(Task(trial, self._goal(trial)) for trial in offered)

    def _offers(self, view: View, most: int) -> list[Trial]:
        offered: list[Trial] = []
        begun: list[TrialId] = []
        for name, trial in self._ready.items():
            if len(offered) == most:
                break
            progress = view.trials.get(name)
            if progress is None or progress.status in {"parked", "at rung"}:
                offered.append(trial)
            elif progress.status != "stopping":
                begun.append(name)
        for name in begun:
            del self._ready[name]
        return offered

    def _goal(self, trial: Trial) -> int:
        return capped(trial, self._epochs[self.level + (trial.id in self._early)])

    def report(self, trial: TrialProgress) -> Decision:
        """Record an epoch; a trial that has reached the rung holds till it is decided."""
        self._ready.pop(trial.id, None)
        if trial.epoch < self._goal(trial.trial):
            return Go(self._goal(trial.trial))
        if trial.id in self._early:
            self._ahead.setdefault(trial.id, trial.metric)
        elif trial.id in self._awaited:
            self._awaited.remove(trial.id)
            self._results[trial.id] = trial.metric
            self._decide()
        last = capped(trial.trial, self._epochs[-1])
        return Verdict.FINISH if trial.epoch >= last else Verdict.HOLD

    def drop(self, trial: TrialId) -> None:
        """Record that a trial won't come back."""
        self._ready.pop(trial, None)
        if trial in self._early:  # it keeps its place, as if it had failed at the next rung
            self._gone.add(trial)
            return
        self._awaited.discard(trial)
        self._results.pop(trial, None)
        self._decide()

    def close(self) -> None:
        """Go on with the trials that it has: there are no more."""
        if self.wants:
            self._size = len(self._trials)
            self._decide()

    def losers(self) -> list[TrialId]:
        """Return the trials that lost since this was last asked."""
        losers = self._losers
        self._losers = []
        return losers

    def _decide(self) -> None:
        """Begin the next rung with the best of this one, once all its trials have reported."""
        if self.wants or self.over:
            return
        if self._awaited:
            self._promote_early()
            return
        ranked = self._ranked()
        rung = self._epochs[self.level]
        self._size = max(1, self._size // self._eta)
        best = (self._trials[name] for name in ranked[: self._size])
        able = {trial.id: trial for trial in best if capped(trial, rung + 1) > rung}
        self._losers += [name for name in ranked if name not in able]
        able = {name: trial for name, trial in able.items() if name not in self._gone}
        early = self._early
        self._early = set()
        self._gone = set()
        self._results = {n: v for n, v in self._ahead.items() if n in able}
        self._ahead = {}
        begun = early - self._ready.keys()
        self._ready = {name: trial for name, trial in able.items() if name not in begun}
        self._awaited = able.keys() - self._results.keys()
        self.level += 1
        self.over = not able or self.level == len(self._epochs)
        if not self.over and early:
            self._decide()  # it may wait for none but those that went ahead

    def _promote_early(self) -> None:
        """Let those go on that no other trial can push out of the best any more."""
        if self.level + 1 == len(self._epochs):
            return
        rung = self._epochs[self.level]
        best = max(1, self._size // self._eta)
        for name in self._ranked()[: max(0, best - len(self._awaited))]:
            trial = self._trials[name]
            if name not in self._early and capped(trial, rung + 1) > rung:
                self._early.add(name)
                self._ready[name] = trial

    def _ranked(self) -> list[TrialId]:
        key = {name: rank_key(self._mode, metric) for name, metric in self._results.items()}
        return sorted(key, key=lambda name: (key[name], name))


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
