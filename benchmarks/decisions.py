"""Whether ASHA, successive halving and Hyperband decide as other programs do on the same reports.

    python -m benchmarks.decisions [--seeds 20] [--trials 243]

Ours are played in the simulator. The reports of each job are then put to Ray Tune, to Optuna, and
to Algorithm 2 of the paper on ASHA. What another says never changes the job, so that all decisions
are compared on the same history. Where rules differ, the rule as we read it is put to the same
reports, and must say what the program says: so the difference is known exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from ray.tune.schedulers import AsyncHyperBandScheduler
from ray.tune.schedulers.hyperband import _Bracket

from benchmarks.runner import parser
from cloudtune.model.commands import ExtendTrial, StartTrial, StopTrial
from cloudtune.model.events import EpochDone
from cloudtune.strategies.rungs import rung_epochs
from tests.builders import LINEAR, Played, Setting, by_name, play, profile

# First and last epoch, and eta.
SIZES = ((1, 81, 3), (1, 64, 4), (2, 64, 2), (1, 100, 3))

Job = dict[str, Any]
# Whether a result goes on, by those before it at its rung and eta.
Rule = Callable[[list[float], float, int], bool]


def game(seed: int, trials: int) -> Setting:
    """Return a job on eight GPUs: curves that cross, epochs that take more or less time."""
    dice = np.random.default_rng(seed)
    top, pace = dice.uniform(0.3, 1.0, trials), dice.uniform(0.02, 0.6, trials)
    noise = dice.normal(0.0, 0.02, (trials, 101))

    def metric(number: int, epoch: int) -> float:
        return float(top[number] * (1 - np.exp(-pace[number] * epoch)) + noise[number, epoch])

    shaky = profile(LINEAR, spread=0.2)
    return Setting(trials, metric=metric, profile=shaky, seed=seed, checked=False)


@dataclass(frozen=True)
class Asked:
    """One job that was played, as a peer is asked about it, and what we decided."""

    job: Job
    ours: list[Any]


# ---- the stopping type ------------------------------------------------------------------------


def stopping(seed: int, trials: int, size: tuple[int, int, int]) -> Asked:
    """Return the reports at the rungs below the last, and whether the trial goes on."""
    first, last, eta = size
    build = by_name("asha-stopping", min_epochs=first, max_epochs=last, eta=eta)
    epochs = rung_epochs(first, last, eta)
    reports, ours = [], []
    for entry in play(game(seed, trials), build).entries:
        event = entry.event
        if isinstance(event, EpochDone) and event.epoch in epochs[:-1]:
            reports.append((event.session.partition(".")[0], event.epoch, event.metrics["score"]))
            ours.append(not any(isinstance(c, StopTrial) for c in entry.commands))
    return Asked({"eta": eta, "epochs": epochs, "reports": reports}, ours)


def _better(before: Sequence[float], score: float) -> int:
    return sum(other > score for other in before)


def _cutoff(scores: Sequence[float], eta: int) -> float:
    """Return the percentile 1 - 1/eta, between two scores by linear interpolation."""
    ordered = sorted(scores)
    index = (len(ordered) - 1) * (1 - 1 / eta)
    low = int(index)
    high = min(low + 1, len(ordered) - 1)
    return ordered[high] * (index - low) + ordered[low] * (1 - (index - low))


def _ours(before: list[float], score: float, eta: int) -> bool:
    return len(before) + 1 < eta or _better(before, score) < (len(before) + 1) // eta


def _ray(before: list[float], score: float, eta: int) -> bool:
    return not before or score >= _cutoff(before, eta)


def _optuna(before: list[float], score: float, eta: int) -> bool:
    return _better(before, score) < max(1, (len(before) + 1) // eta)


def ruled(job: Job, rule: Rule) -> list[bool]:
    """Return what a rule says to the reports of a job."""
    rungs: dict[int, list[float]] = {}
    said = []
    for _, epoch, score in job["reports"]:
        before = rungs.setdefault(epoch, [])
        said.append(rule(before, score, job["eta"]))
        before.append(score)
    return said


# ---- the promotion type -----------------------------------------------------------------------


def promotion(seed: int, trials: int, size: tuple[int, int, int]) -> Asked:
    """Return reports and choices in order; a choice is whom a free GPU was given to."""
    first, last, eta = size
    build = by_name("asha", min_epochs=first, max_epochs=last, eta=eta)
    epochs = rung_epochs(first, last, eta)
    steps: list[tuple[Any, ...]] = []
    for entry in play(game(seed, trials), build).entries:
        event = entry.event
        if isinstance(event, EpochDone) and event.epoch in epochs:
            name = event.session.partition(".")[0]
            steps.append(("report", name, event.epoch, event.metrics["score"]))
        for command in entry.commands:
            if isinstance(command, StartTrial) and command.start_epoch == 0:
                steps.append(("choice", "", -1))
            elif isinstance(command, StartTrial):
                steps.append(("choice", command.trial, epochs.index(command.start_epoch)))
            elif isinstance(command, ExtendTrial):
                level = epochs.index(command.until_epoch) - 1
                steps.append(("choice", command.session.partition(".")[0], level))
    ours = [step[1] or None for step in steps if step[0] == "choice"]
    return Asked({"eta": eta, "epochs": epochs, "steps": steps}, ours)


def printed(job: Job) -> list[str | None]:
    """Return the choices by Algorithm 2 of Li et al. (2020), as it is printed there."""
    rungs: list[dict[str, float]] = [{} for _ in job["epochs"]]
    gone: set[tuple[int, str]] = set()
    said: list[str | None] = []
    for step in job["steps"]:
        if step[0] == "report":
            rungs[job["epochs"].index(step[2])][step[1]] = step[3]
        else:
            said.append(_candidate(rungs, gone, job["eta"]))
            gone.add((step[2], step[1]))
    return said


def _candidate(
    rungs: Sequence[Mapping[str, float]], gone: set[tuple[int, str]], eta: int
) -> str | None:
    for level in range(len(rungs) - 2, -1, -1):
        best = sorted(rungs[level], key=lambda name: -rungs[level][name])
        for name in best[: len(best) // eta]:
            if (level, name) not in gone:
                return name
    return None


# ---- rungs that are waited for ----------------------------------------------------------------


def rungs_of(name: str, seed: int, trials: int, size: tuple[int, int, int]) -> Asked:
    """Return the results of each rung that was decided, and who went on, best first."""
    first, last, eta = size
    given = trials if name == "sha" else None
    build = by_name(name, min_epochs=first, max_epochs=last, eta=eta, trials=given)
    played = play(game(seed, trials), build)
    parts: dict[str, dict[str, int]] = {}
    for group in played.groups():
        members = parts.setdefault(group.name, {})
        members.update((task.trial.id, task.until) for task in group.tasks)
    rungs, ours = [], []
    for part, members in parts.items():
        bracket, _, level = part.rpartition(" ")
        above = parts.get(f"{bracket} {int(level) + 1}")
        if above is not None:
            rungs.append(_rung(played, members, len(above)))
            ours.append(sorted(above))
    epochs = rung_epochs(first, last, eta)
    return Asked({"eta": eta, "epochs": epochs, "rungs": rungs}, ours)


def _rung(played: Played, members: Mapping[str, int], on: int) -> Job:
    trials = played.policy.trials
    results = {name: trials[name].history[until] for name, until in members.items()}
    return {"results": results, "on": on, "epoch": next(iter(members.values()))}


# ---- what other programs decide ---------------------------------------------------------------


class Named:
    """A trial of Ray's, as far as its schedulers look at it."""

    def __init__(self, name: str) -> None:
        self.trial_id = name


def ray_stopping(job: Job) -> list[bool]:
    """Return for each report whether Ray Tune's AsyncHyperBandScheduler lets the trial go on."""
    scheduler = AsyncHyperBandScheduler(
        time_attr="epoch",
        metric="score",
        mode="max",
        max_t=job["epochs"][-1],
        grace_period=job["epochs"][0],
        reduction_factor=job["eta"],
    )
    trials: dict[str, Any] = {}
    said = []
    for name, epoch, score in job["reports"]:
        if name not in trials:
            trials[name] = Named(name)
            scheduler.on_trial_add(None, trials[name])
        result = {"epoch": epoch, "score": score}
        said.append(scheduler.on_trial_result(None, trials[name], result) == "CONTINUE")
    return said


def optuna_stopping(job: Job) -> list[bool]:
    """Return the same of Optuna's SuccessiveHalvingPruner."""
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


def ray_rungs(job: Job) -> list[list[str]]:
    """Return who goes on from each rung by a bracket of Ray Tune's HyperBandScheduler.

    It rounds the size of the next rung up, where the paper and we round it down.
    """
    said = []
    for rung in job["rungs"]:
        count = len(rung["results"])
        bracket = _Bracket("epoch", count, rung["epoch"], job["epochs"][-1], job["eta"], 1)
        for name, score in rung["results"].items():
            trial: Any = Named(name)
            bracket.add_trial(trial)
            bracket.update_trial_stats(trial, {"epoch": rung["epoch"], "score": score})
        good, _ = bracket.successive_halving("score", 1.0)
        said.append([trial.trial_id for trial in reversed(good)])
    return said


# ---- the comparison ---------------------------------------------------------------------------


RULES: tuple[tuple[Callable[[Job], list[bool]], Rule, str], ...] = (
    (ray_stopping, _ray, "not below the percentile 1 - 1/eta of the n - 1 others, or n = 1"),
    (optuna_stopping, _optuna, "r < max(1, floor(n / eta))"),
)


def line(what: str, figures: str) -> None:
    print(f"  {what:28} {figures}")


def same(ours: Iterable[Sequence[Any]], theirs: Iterable[Sequence[Any]]) -> str:
    """Return how many decisions are the same, as text."""
    pairs = [
        pair
        for one, other in zip(ours, theirs, strict=True)
        for pair in zip(one, other, strict=True)
    ]
    equal = sum(one == other for one, other in pairs)
    return f"{equal:6d} of {len(pairs):6d} ({equal / len(pairs):7.2%})"


def compare_stopping(asked: Sequence[Asked]) -> None:
    print("\nASHA, stopping type: does the trial go on? Ours: r < floor(n / eta), or n < eta;")
    print("of n results at the rung, the trial's own among them, r are better.")
    ours = [one.ours for one in asked]
    line("the rule, in so many words", same(ours, [ruled(one.job, _ours) for one in asked]))
    for peer, rule, text in RULES:
        theirs = [peer(one.job) for one in asked]
        line(peer.__name__, f"{same(ours, theirs)}; {_few(asked, theirs)}")
        explained = same([ruled(one.job, rule) for one in asked], theirs)
        line("  as we read its rule", f"{explained}: {text}")


def _few(asked: Sequence[Asked], theirs: Sequence[Sequence[bool]]) -> str:
    """Return how the differences fall: with fewer than eta results, and which way."""
    few = more = less = 0
    for one, said in zip(asked, theirs, strict=True):
        counts: dict[int, int] = {}
        for (_, epoch, _), our, their in zip(one.job["reports"], one.ours, said, strict=True):
            counts[epoch] = counts.get(epoch, 0) + 1
            if our != their and counts[epoch] < one.job["eta"]:
                few += 1
            elif our != their:
                more += not our
                less += our
    return f"{few} differ while n < eta; after that it lets {more} more go on, and {less} fewer"


def compare_promotion(asked: Sequence[Asked]) -> None:
    print("\nASHA, promotion type: whom does a free GPU go to? Ours: the best floor(n / eta).")
    ours = [one.ours for one in asked]
    line("Algorithm 2 of the paper", same(ours, [printed(one.job) for one in asked]))


def compare_rungs(name: str, asked: Sequence[Asked]) -> None:
    print(
        f"\n{name}: who goes on from a rung, when all have reported? Ours: the best floor(n / eta)."
    )
    ours = [one.ours for one in asked]
    theirs = [ray_rungs(one.job) for one in asked]
    rungs = [
        pair
        for one, other in zip(ours, theirs, strict=True)
        for pair in zip(one, other, strict=True)
    ]
    sizes = sum(len(our) == len(their) for our, their in rungs)
    best = same([[our] for our, _ in rungs], [[sorted(their[: len(our)])] for our, their in rungs])
    line("ray_rungs", f"{best} the same best; {sizes} of as many trials")


def main() -> None:
    given = parser(__doc__, seeds=20, trials=243).parse_args()
    games = [(seed, given.trials, size) for size in SIZES for seed in range(given.seeds)]
    print(f"{len(games)} jobs of {given.trials} trials; first epoch, last epoch, eta: {SIZES}")
    compare_stopping([stopping(*one) for one in games])
    compare_promotion([promotion(*one) for one in games])
    compare_rungs("Successive halving", [rungs_of("sha", *one) for one in games])
    compare_rungs("Hyperband", [rungs_of("hyperband", *one) for one in games])


if __name__ == "__main__":
    main()
