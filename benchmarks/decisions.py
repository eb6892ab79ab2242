"""Whether ASHA, successive halving and Hyperband decide as other programs do on the same reports.

    python benchmarks/decisions.py [--seeds 20] [--syne-tune PYTHON] [--old-syne-tune PYTHON]

Ours are played in the simulator; the reports of each job are then put to Ray Tune and Optuna (of
this Python), Syne Tune 0.16 and Syne Tune 0.13 (the last with a promotion type and synchronous
Hyperband), where a Python is named that has them. What another says never changes the job, so that
each decision is compared on the same history. Where rules differ, the rule as we read it is put to
the same reports, and must say what the program says: so the difference is known exactly.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

from cloudtune.model.commands import ExtendTrial, StartTrial, StopTrial
from cloudtune.model.events import EpochDone
from cloudtune.strategies.rungs import rung_epochs
from tests.builders import LINEAR, Played, Setting, by_name, play, profile

SIZES = ((1, 81, 3), (1, 64, 4), (2, 64, 2), (1, 100, 3))
"""First and last epoch, and eta."""

Job = dict[str, Any]
Promoted = Callable[[Sequence[float], int], int]
"""How many of such results at a rung are promoted, by eta."""
Rule = Callable[[list[float], float, int], bool]
"""Whether a result goes on, by those before it at its rung and eta."""


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


def _syne(before: list[float], score: float, eta: int) -> bool:
    return not before or _better(before, score) / (len(before) + 1) <= 1 / eta


def _old_syne(before: list[float], score: float, eta: int) -> bool:
    return not before or score >= _cutoff([*before, score], eta)


RULES: dict[str, tuple[str, Rule]] = {
    "ray_stopping": ("not below the percentile 1 - 1/eta of the n - 1 others, or n = 1", _ray),
    "optuna_stopping": ("r < max(1, floor(n / eta))", _optuna),
    "syne_stopping": ("r / n <= 1 / eta, or n = 1", _syne),
    "old_syne_stopping": ("not below the percentile 1 - 1/eta of all n, or n = 1", _old_syne),
}


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


def printed(job: Job, promoted: Promoted) -> list[str | None]:
    """Return the choices by Algorithm 2 of Li et al. (2020), in so many words."""
    rungs: list[dict[str, float]] = [{} for _ in job["epochs"]]
    gone: set[tuple[int, str]] = set()
    said: list[str | None] = []
    for step in job["steps"]:
        if step[0] == "report":
            rungs[job["epochs"].index(step[2])][step[1]] = step[3]
        else:
            said.append(_candidate(rungs, gone, job["eta"], promoted))
            gone.add((step[2], step[1]))
    return said


def _candidate(
    rungs: Sequence[Mapping[str, float]], gone: set[tuple[int, str]], eta: int, promoted: Promoted
) -> str | None:
    for level in range(len(rungs) - 2, -1, -1):
        best = sorted(rungs[level], key=lambda name: -rungs[level][name])
        for name in best[: promoted(list(rungs[level].values()), eta)]:
            if (level, name) not in gone:
                return name
    return None


def _floor(scores: Sequence[float], eta: int) -> int:
    return len(scores) // eta


def _quantile(scores: Sequence[float], eta: int) -> int:
    """Return ceil(n / eta); one fewer where rounding puts the percentile above a score."""
    return sum(s >= _cutoff(scores, eta) for s in scores) if len(scores) > 1 else 0


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


# ---- the comparison ---------------------------------------------------------------------------


def answers(python: str, peer: str, asked: Sequence[Asked]) -> list[list[Any]]:
    """Return what a peer says to each job."""
    script = Path(__file__).with_name("decisions_peers.py")
    done = subprocess.run(
        [python, str(script), peer],
        input=json.dumps([each.job for each in asked]),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{peer} by {python} failed:\n{done.stderr[-2000:]}")
    found: list[list[Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


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


def compare_stopping(asked: Sequence[Asked], pythons: Mapping[str, str]) -> None:
    print("\nASHA, stopping type: does the trial go on? Ours: r < floor(n / eta), or n < eta;")
    print("of n results at the rung, the trial's own among them, r are better.")
    ours = [each.ours for each in asked]
    line("the rule, in so many words", same(ours, [ruled(e.job, _ours) for e in asked]))
    for peer, (text, rule) in RULES.items():
        if peer in pythons:
            theirs = answers(pythons[peer], peer, asked)
            line(peer, f"{same(ours, theirs)}; {_few(asked, theirs)}")
            explained = same([ruled(e.job, rule) for e in asked], theirs)
            line("  as we read its rule", f"{explained}: {text}")


def _few(asked: Sequence[Asked], theirs: Sequence[Sequence[bool]]) -> str:
    """Return how the differences fall: with fewer than eta results, and which way."""
    few = more = less = 0
    for each, said in zip(asked, theirs, strict=True):
        counts: dict[int, int] = {}
        for (_, epoch, _), our, their in zip(each.job["reports"], each.ours, said, strict=True):
            counts[epoch] = counts.get(epoch, 0) + 1
            if our != their and counts[epoch] < each.job["eta"]:
                few += 1
            elif our != their:
                more, less = more + (not our), less + our
    return f"{few} differ while n < eta; after that it lets {more} more go on, and {less} fewer"


def compare_promotion(asked: Sequence[Asked], pythons: Mapping[str, str]) -> None:
    print("\nASHA, promotion type: whom does a free GPU go to? Ours: the best floor(n / eta).")
    ours, paper = [each.ours for each in asked], [printed(each.job, _floor) for each in asked]
    line("Algorithm 2 of the paper", same(ours, paper))
    if "old_syne_promotion" not in pythons:
        return
    theirs = answers(pythons["old_syne_promotion"], "old_syne_promotion", asked)
    explained = [printed(each.job, _quantile) for each in asked]
    line("old_syne_promotion", same(ours, theirs))
    line("  as we read its rule", f"{same(explained, theirs)}: the best ceil(n / eta), n > 1")
    alike = [
        [a == b for a, b in zip(*pair, strict=True)] for pair in zip(paper, explained, strict=True)
    ]
    line("  where both rules name one", same(_where(alike, ours), _where(alike, theirs)))


def _where(chosen: Sequence[Sequence[bool]], said: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [
        [each for use, each in zip(*pair, strict=True) if use]
        for pair in zip(chosen, said, strict=True)
    ]


def compare_rungs(name: str, asked: Sequence[Asked], pythons: Mapping[str, str]) -> None:
    print(
        f"\n{name}: who goes on from a rung, when all have reported? Ours: the best floor(n / eta)."
    )
    ours = [each.ours for each in asked]
    for peer in ("old_syne_rungs", "ray_rungs"):
        if peer not in pythons:
            continue
        theirs = answers(pythons[peer], peer, asked)
        pairs = [
            (len(our), len(their))
            for one, other in zip(ours, theirs, strict=True)
            for our, their in zip(one, other, strict=True)
        ]
        cut = [
            [sorted(their[: len(our)]) for our, their in zip(one, other, strict=True)]
            for one, other in zip(ours, theirs, strict=True)
        ]
        sizes = sum(one == other for one, other in pairs)
        line(peer, f"{same(ours, cut)} the same best; {sizes} of as many trials")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=243)
    parser.add_argument("--syne-tune", metavar="PYTHON")
    parser.add_argument("--old-syne-tune", metavar="PYTHON")
    given = parser.parse_args()
    pythons = dict.fromkeys(("ray_stopping", "optuna_stopping", "ray_rungs"), sys.executable)
    if given.syne_tune:
        pythons["syne_stopping"] = given.syne_tune
    if given.old_syne_tune:
        old = ("old_syne_stopping", "old_syne_promotion", "old_syne_rungs")
        pythons.update(dict.fromkeys(old, given.old_syne_tune))
    each = [(seed, given.trials, size) for size in SIZES for seed in range(given.seeds)]
    print(f"{len(each)} jobs of {given.trials} trials; first epoch, last epoch, eta: {SIZES}")
    compare_stopping([stopping(*one) for one in each], pythons)
    compare_promotion([promotion(*one) for one in each], pythons)
    compare_rungs("Successive halving", [rungs_of("sha", *one) for one in each], pythons)
    compare_rungs("Hyperband", [rungs_of("hyperband", *one) for one in each], pythons)


if __name__ == "__main__":
    main()
