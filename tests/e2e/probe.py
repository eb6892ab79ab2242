"""A run whose strategy asks for everything that a world must be able to do with sessions."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cloudtune.experiment import Experiment
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import Trial, Width
from cloudtune.planning.make import LEASE_GRACE_SECONDS
from cloudtune.planning.problem import problem_of, stored_profiles
from cloudtune.policy.base import Components, Metric
from cloudtune.policy.registry import run_policy
from cloudtune.running.runner import Runner, open_cloud
from cloudtune.runs import home
from cloudtune.runs.job import brakes, context_of
from cloudtune.strategies.base import ByWidth, Decision, Go, Task, TrialGroup, Verdict, View
from cloudtune.strategies.fleets import ConstantFleet
from cloudtune.strategies.rungs import Judging

FIRST, CLONE = Trial("t00", {"lr": 0.01, "n": 1}), Trial("c00", {"lr": 0.02, "n": 2})
FAR = 100_000


class Probe(Judging):
    """One trial that is stopped in mid-training and goes on wider, and a clone of it."""

    name = "probe"
    anytime = False

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return what comes next: the trial, the trial again, its clone."""
        first = view.trials.get(FIRST.id)
        if first is None or first.status == "parked":
            return [TrialGroup("first", (Task(FIRST, FAR),))]
        if first.sessions == 2 and first.epoch >= 10 and CLONE.id not in view.trials:
            return [TrialGroup("clone", (Task(CLONE, first.epoch + 2, clone_of=FIRST.id),))]
        return []

    def on_result(self, view: View, trial: TrialProgress) -> Decision:
        """Stop the first at epoch 3, though far more is granted; extend the clone each epoch."""
        if trial.id == CLONE.id:
            return Verdict.FINISH if len(trial.history) == 10 else Go(trial.epoch + 2)
        if trial.sessions == 1 and trial.epoch == 3:
            return Verdict.PAUSE
        clone = view.trials.get(CLONE.id)
        return Verdict.FINISH if clone is not None and clone.status == "finished" else Go(FAR)

    def on_failure(self, view: View, trial: TrialProgress) -> None:
        """Nobody is to fail here."""

    def done(self, view: View) -> bool:
        """Whether both have finished, or one has failed."""
        states = [trial.status for trial in view.trials.values()]
        return "failed" in states or states == ["finished", "finished"]


@dataclass(frozen=True)
class Widths(ByWidth):
    """One GPU, then two, and half of one for the clone."""

    name: str = "probe"

    def min_width(self, view: View) -> Width:
        """Return half a GPU."""
        return 0.5

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        again = FIRST.id in view.trials
        return [0.5 if task.trial.id == CLONE.id else 2.0 if again else 1.0 for task in tasks]

    def resized(self, view: View, trial: TrialProgress) -> Width:
        return trial.width


def rentable(experiment: Experiment) -> Rentable:
    """Return the instances of the experiment, with a speed for half a GPU."""
    [found] = problem_of(experiment, stored_profiles(experiment)).rentables
    epoch = {0.5: found.profile.epoch[1.0], **found.profile.epoch}
    return replace(found, profile=replace(found.profile, epoch=epoch))


def main(path: str) -> None:
    """Run it on the emulated cloud, in epochs of tenths of a second."""
    home.close()
    experiment = Experiment.load(path)
    rented = rentable(experiment)
    limits = Limits(400.0, None)  # it ends in 30 s on idle cores
    policy = run_policy(
        context_of(experiment, (rented,), limits),
        Components(Probe(), Widths(), ConstantFleet(rented.offer, 2)),
        Metric("loss", "min"),
        brakes(experiment, (rented,)),
    )
    folder, began = home.new_run(experiment.name), time.time()
    runner = Runner(
        folder=folder,
        experiment=experiment,
        offers=(rented.offer,),
        cloud=open_cloud(experiment, pace=True, profiles=[rented.profile]),
        began=began,
        lease_seconds=600.0,
        lease_end=began + 600.0 + LEASE_GRACE_SECONDS,
        join_seconds=120.0,
        last_epoch=FAR,
    )
    runner.go(policy, folder / "ledger.jsonl", {"probe": True}, lambda *_: None)


if __name__ == "__main__":
    main(sys.argv[1])
