"""What other programs decide on the reports of decisions.py: run by a Python that has them.

    PYTHON benchmarks/decisions_peers.py NAME <questions.json >answers.json

It imports nothing of cloudtune. A question is one job: `eta`, `epochs` of its rungs (the last one
is the longest a trial may train) and what the name asks for; more of the metric is better.
"""

# ruff: noqa: PLC0415, SLF001  a Python has one of them at most; and it is rules we are after

from __future__ import annotations

import copy
import json
import sys
from typing import Any

Question = dict[str, Any]


def ray_stopping(job: Question) -> list[bool]:
    """Return for each report whether Ray Tune's AsyncHyperBandScheduler lets the trial go on."""
    from ray.tune.schedulers import AsyncHyperBandScheduler

    scheduler = AsyncHyperBandScheduler(
        time_attr="epoch",
        metric="score",
        mode="max",
        max_t=job["epochs"][-1],
        grace_period=job["epochs"][0],
        reduction_factor=job["eta"],
    )
    trials: dict[str, Named] = {}
    said = []
    for name, epoch, score in job["reports"]:
        if name not in trials:
            trials[name] = Named(name)
            scheduler.on_trial_add(None, trials[name])
        result = {"epoch": epoch, "score": score}
        said.append(scheduler.on_trial_result(None, trials[name], result) == "CONTINUE")
    return said


class Named:
    """A trial of Ray's, as far as its schedulers look at it."""

    def __init__(self, name: str) -> None:
        self.trial_id = name


def optuna_stopping(job: Question) -> list[bool]:
    """Return the same of Optuna's SuccessiveHalvingPruner."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.SuccessiveHalvingPruner(
        min_resource=job["epochs"][0], reduction_factor=job["eta"]
    )
    study = optuna.create_study(direction="maximize", pruner=pruner)
    trials: dict[str, Any] = {}
    said = []
    for name, epoch, score in job["reports"]:
        trial = trials[name] = trials.get(name) or study.ask()
        trial.report(score, epoch)
        said.append(not trial.should_prune())
    return said


def syne_stopping(job: Question) -> list[bool]:
    """Return the same of Syne Tune 0.16's AsynchronousSuccessiveHalving."""
    from syne_tune.optimizer.schedulers.asha import Bracket

    bracket = Bracket(job["epochs"][0], job["epochs"][-1], job["eta"], 0)
    return [
        bracket.on_result(name, epoch, {"score": -score}) == "CONTINUE"
        for name, epoch, score in job["reports"]
    ]


def _rung_system(kind: Any, job: Question) -> Any:
    levels, eta = job["epochs"][:-1], job["eta"]
    return kind(levels, [1 / eta] * len(levels), "score", "max", "epoch", job["epochs"][-1])


def old_syne_stopping(job: Question) -> list[bool]:
    """Return the same of Syne Tune 0.13's HyperbandScheduler(type="stopping")."""
    from syne_tune.optimizer.schedulers.hyperband_stopping import StoppingRungSystem

    rungs = _rung_system(StoppingRungSystem, job)
    return [
        rungs.on_task_report(name, {"epoch": epoch, "score": score}, 0)["task_continues"]
        for name, epoch, score in job["reports"]
    ]


def old_syne_promotion(job: Question) -> list[str | None]:
    """Return for each choice whom Syne Tune 0.13's type="promotion" would have promoted.

    The history is the job's own: a step is a report, or a choice that was made ("" for a new
    trial), whatever the scheduler says to it.
    """
    from syne_tune.optimizer.schedulers.hyperband_promotion import PromotionRungSystem

    rungs = _rung_system(PromotionRungSystem, job)
    said: list[str | None] = []
    for step in job["steps"]:
        if step[0] == "report":
            _, name, epoch, score = step
            if name not in rungs._running:
                rungs.on_task_add(name, 0, new_config=True)
            rungs.on_task_report(name, {"epoch": epoch, "score": score}, 0)
            continue
        _, name, level = step
        found = copy.deepcopy(rungs).on_task_schedule("new").get("trial_id")
        said.append(found)
        if name:
            rung = next(r for r in rungs._rungs if r.level == job["epochs"][level])
            at = next(n for n, entry in enumerate(rung.data) if entry.trial_id == name)
            rungs._mark_as_promoted(rung, at)
            goal, resumed = job["epochs"][level + 1], job["epochs"][level]
            rungs.on_task_add(name, 0, new_config=False, milestone=goal, resume_from=resumed)
    return said


def old_syne_rungs(job: Question) -> list[list[str]]:
    """Return who goes on from each rung by Syne Tune 0.13's synchronous Hyperband.

    `rungs` are the results at each, of brackets that are given our sizes.
    """
    from syne_tune.optimizer.schedulers.synchronous.hyperband_bracket import get_top_list

    return [
        list(get_top_list(list(rung["results"].items()), rung["on"], "max")[0])
        for rung in job["rungs"]
    ]


def ray_rungs(job: Question) -> list[list[str]]:
    """Return who goes on from each rung by a bracket of Ray Tune's HyperBandScheduler.

    It rounds the size of the next rung up, where the paper and we round it down.
    """
    from ray.tune.schedulers.hyperband import _Bracket

    said = []
    for rung in job["rungs"]:
        count = len(rung["results"])
        bracket = _Bracket("epoch", count, rung["epoch"], job["epochs"][-1], job["eta"], 1)
        for name, score in rung["results"].items():
            trial = Named(name)
            bracket.add_trial(trial)
            bracket.update_trial_stats(trial, {"epoch": rung["epoch"], "score": score})
        good, _ = bracket.successive_halving("score", 1.0)
        said.append([trial.trial_id for trial in reversed(good)])
    return said


def ray_pbt(job: Question) -> list[list[list[str]]]:
    """Return the worst and the best quarter at each report, by Ray Tune's PopulationBasedTraining.

    A place keeps its name when a clone takes it over. Steps: a place's report; a clone that begins
    at an epoch; a place that is over.
    """
    from ray.tune.schedulers import PopulationBasedTraining

    said: list[list[list[str]]] = []

    class Asked(PopulationBasedTraining):
        def _checkpoint_or_exploit(self, *asked: Any) -> None:
            upper, lower = asked[2:]
            said.append([[each.trial_id for each in lower], [each.trial_id for each in upper]])

    scheduler = Asked(
        time_attr="epoch",
        metric="score",
        mode="max",
        perturbation_interval=job["interval"],
        hyperparam_mutations={"x": [1, 2]},
    )
    control, places = Control(), dict[str, Place]()
    for kind, name, epoch, score in job["steps"]:
        if name not in places:
            places[name] = Place(name)
            scheduler.on_trial_add(control, places[name])  # type: ignore[arg-type]
        if kind == "begins":
            scheduler._trial_state[places[name]].last_perturbation_time = epoch  # type: ignore[index]
        elif kind == "over":
            places[name].over = True
        else:
            before = len(said)
            result = {"epoch": epoch, "score": score}
            scheduler.on_trial_result(control, places[name], result)  # type: ignore[arg-type]
            if len(said) == before:
                said.append([])
    return said


class Place:
    """A trial of Ray's, as far as its PBT looks at it."""

    def __init__(self, name: str) -> None:
        self.trial_id, self.over = name, False
        self.status, self.config, self.evaluated_params = "RUNNING", {"x": 1}, dict[str, Any]()
        self.run_metadata = self.checkpoint_manager = self.checkpoint_config = self
        self.num_to_keep = None
        self.local_experiment_path = self.experiment_tag = ""

    def is_finished(self) -> bool:
        return self.over


class Control:
    """A controller of Ray's that has nothing to do."""

    search_alg = None

    def get_trials(self) -> list[Any]:
        return []


PEERS = {
    each.__name__: each
    for each in (
        ray_stopping,
        optuna_stopping,
        syne_stopping,
        old_syne_stopping,
        old_syne_promotion,
        old_syne_rungs,
        ray_rungs,
        ray_pbt,
    )
}


if __name__ == "__main__":
    jobs = json.load(sys.stdin)
    answers = [PEERS[sys.argv[1]](job) for job in jobs]
    json.dump(answers, sys.stdout)
