"""What a person sees of a run that decides as it goes: promotions, pauses, cuts and resizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cloudtune.commands import ExtendTrial, StartTrial, StopTrial
from cloudtune.phrases import counted, gpus_text
from cloudtune.progress import OVER
from cloudtune.screen import Screen, restart_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from cloudtune.commands import Command
    from cloudtune.elastic import ElasticPolicy
    from cloudtune.progress import Status, TrialProgress

_LEFT: dict[Status, str] = {"parked": "paused", "cut": "cut", "finished": "finished"}


class ElasticScreen(Screen):
    """Tells a run whose strategy decides as results come in.

    `rungs` are the epochs at which trials are compared: one that trains on there, without ever
    leaving its GPUs, is told to be promoted. What it is granted in between is not worth a line.
    """

    # Most strategies use what they are given, so that a limit is their normal end.
    endings: ClassVar = {
        **Screen.endings,
        "done": "done; the best checkpoint is saved, giving everything back",
    }

    def __init__(self, out: Console, policy: ElasticPolicy, rungs: Iterable[int] = ()) -> None:
        super().__init__(out, policy)
        self._policy = policy
        self._rungs = frozenset(rungs)
        self._paused: set[str] = set()

    def _progress(self, at: float) -> str:
        trials = list(self._policy.trials.values())
        running = sum(trial.live for trial in trials)
        ended = sum(trial.status in OVER for trial in trials)
        paused, started = len(trials) - running - ended, counted(len(trials), "trial")
        parts = [
            f"{running} running, {paused} paused, {ended} ended of {started} started",
            f"{counted(sum(trial.epoch for trial in trials), 'epoch')} done",
            self._best(),
            *self._limits(at),
        ]
        return " | ".join(parts)

    def _tell_trials(self, at: float, commands: Sequence[Command]) -> None:
        self._tell_stops(at, commands)
        for command in commands:
            if isinstance(command, ExtendTrial):
                self._tell_promotion(at, command)
        super()._tell_trials(at, commands)

    def _tell_stops(self, at: float, commands: Sequence[Command]) -> None:
        """Tell who leaves its GPUs; at the end all do, and nothing is said of it."""
        if self._policy.winding_down:
            return
        found: dict[str, list[str]] = {}
        for command in commands:
            if isinstance(command, StopTrial):
                trial = self._policy.trials[command.session.rpartition(".")[0]]
                word = _LEFT.get(trial.after)
                if word is not None:
                    found.setdefault(word, []).append(self._standing(trial))
                if trial.after == "parked":
                    self._paused.add(trial.id)
        for word, names in found.items():
            self._say(at, f"{word}: {', '.join(names)}")

    def _standing(self, trial: TrialProgress) -> str:
        metric = "" if trial.metric is None else f" ({self._policy.metric.name} {trial.metric:.4g})"
        return f"{trial.id} at epoch {trial.epoch}{metric}"

    def _tell_promotion(self, at: float, command: ExtendTrial) -> None:
        trial = self._policy.trials[command.session.rpartition(".")[0]]
        if trial.epoch in self._rungs:
            self._say(at, f"promoted: {self._standing(trial)}, on to epoch {command.until_epoch}")

    def _restart(self, command: StartTrial, before: float | None) -> str:
        if before is None:
            return (
                f"starts {command.trial} on {gpus_text(command.width)}, from epoch "
                f"{command.start_epoch} of another trial's checkpoint"
            )
        if command.trial not in self._paused:
            return restart_text(command, before)
        self._paused.discard(command.trial)
        return (
            f"resumes {command.trial} from epoch {command.start_epoch} to {command.until_epoch}, "
            f"on {gpus_text(command.width)}"
        )
