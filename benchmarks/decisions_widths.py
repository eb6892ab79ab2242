"""Whether strategies decide as algorithms that are written apart, under each allocator.

    python -m benchmarks.decisions_widths [--trials 120] [--seeds 3] [--strategies asha,pbt,...]

Each cell is one strategy and one allocator: instances of 4 or 8 GPUs, widths from a quarter of a
GPU to 8 of sublinear speed, trials of different speeds, resizes of 0 or 2 seconds. A decision of
ASHA is a trial that is given GPUs; of halving, Hyperband, BOHB and grids a trial that is trained to
a rung; of BOHB's model a configuration; of PBT a member that is judged, or a clone that begins.
Then PBT's reports are put to Ray Tune's PopulationBasedTraining, as in `decisions.py`.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.decisions import Asked, answers
from cloudtune.model.commands import StartTrial
from cloudtune.model.events import EpochDone
from cloudtune.policy.registry import ALLOCATORS
from tests.builders import by_name, offer, play, profile
from tests.policy.test_promoted import FROM_A_QUARTER, decisions, game
from tests.strategies.test_decisions import APART, differing, hyperband
from tests.strategies.written_apart import (
    POPULATION,
    bred,
    model_decisions,
    modelled,
    pbt_decisions,
    reached,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.strategies.written_apart import Bred

Figures = tuple[int, int]
"""Decisions, and how many of them differ."""


def asha(allocator: str, seed: int, trials: int) -> Figures:
    """Return the figures of a run of ASHA beside algorithm 2."""
    made = game(
        trials=trials,
        metric=lambda number, epoch: (7 + 4 * seed) * number % trials + epoch / 100,
        offer=offer((4, 8)[seed % 2]),
        max_instances=1 + seed // 2 % 2,
        profile=profile(FROM_A_QUARTER, start=1.0, resize=2.0 * (seed % 3 > 0), boot=0.0),
    )
    made = made.but(allocator=lambda: ALLOCATORS[allocator](made.context()))
    return decisions(play(made, by_name("asha", eta=2, max_epochs=8)), [1, 2, 4, 8], 2)


def pbt(allocator: str, seed: int, trials: int) -> Figures:
    """Return the figures of a run of PBT, judged at each epoch or at each second one."""
    return pbt_decisions(bred(allocator, seed, trials, (9, 24)[seed % 2]))


def model(strategy: str) -> Callable[[str, int, int], Figures]:
    """Return what gives the figures of a strategy's model: its proposals, and who goes on."""

    def figures(allocator: str, seed: int, trials: int) -> Figures:
        found = modelled(strategy, allocator, seed, trials)
        _, proposed, wrong = model_decisions(found)
        expected, trained = hyperband(trials, 3, 9, lambda n, e: reached(found.configs[n], e))
        wrong += sum(found.epochs[number] != epochs for number, epochs in expected.items())
        return proposed + trained, wrong

    return figures


def given(strategy: str) -> Callable[[str, int, int], Figures]:
    """Return what gives the figures of a strategy whose configurations are given."""
    return lambda allocator, seed, trials: differing(strategy, allocator, seed, trials)


PLAYED: dict[str, Callable[[str, int, int], Figures]] = {
    "asha": asha,
    **{name: given(name) for name in APART},
    "bohb, model": model("bohb"),
    "sync-bohb, model": model("sync-bohb"),
    "pbt": pbt,
}


def table(names: Sequence[str], seeds: int, trials: int) -> None:
    """Print the decisions of each strategy under each allocator, and how many differ."""
    print(f"{'strategy':18}{'allocator':30}{'decisions':>10}{'differing':>10}{'seconds':>9}")
    total = wrong = 0
    for name in names:
        for allocator in ALLOCATORS:
            begin = time.perf_counter()
            each = [PLAYED[name](allocator, seed, trials) for seed in range(seeds)]
            count, other = (sum(column) for column in zip(*each, strict=True))
            total, wrong = total + count, wrong + other
            took = time.perf_counter() - begin
            print(f"{name:18}{allocator:30}{count:10d}{other:10d}{took:9.1f}", flush=True)
    print(f"{'all':48}{total:10d}{wrong:10d}")


# ---- PBT and Ray Tune -------------------------------------------------------------------------


def populations(found: Bred) -> list[Asked]:
    """Return the reports of each population by place, and who took over there from whom."""
    taken = {(each.replaced, each.epoch): each for each in found.exploits}
    children = {each.child: each for each in found.exploits}
    places: dict[str, str] = {}
    holders: dict[str, str] = {}  # whose result is the last of a place
    begun: set[str] = set()
    asked: list[Asked] = []
    for entry in found.entries:
        event = entry.event
        if isinstance(event, EpochDone):
            name = event.session.partition(".")[0]
            steps, place = asked[-1].job["steps"], places[name]
            steps.append(("reports", place, event.epoch, event.metrics["score"]))
            exploit = taken.get((name, event.epoch))
            holders[place] = name
            asked[-1].ours.append(places[exploit.parent] if exploit else "")
            if exploit:
                places[exploit.child] = place
            if event.epoch == found.last:
                steps.append(("over", place, 0, 0.0))
        for command in entry.commands:
            if not isinstance(command, StartTrial) or command.trial in begun:
                continue
            name = command.trial
            begun.add(name)
            if command.start_epoch == 0 and name not in children:
                places[name] = name
                if sum(n not in children for n in begun) % POPULATION == 1:
                    asked.append(Asked({"interval": found.interval, "steps": []}, []))
            asked[-1].job["steps"].append(("begins", places[name], command.start_epoch, 0.0))
    return asked


def beside_ray(seeds: int, trials: int) -> None:
    """Print how often Ray's PBT exploits where ours does, and takes over from one that it may."""
    for last in (9, 24):
        asked = [
            each
            for seed in range(seeds)
            for allocator in ("same", "dynamic-fluid")
            for each in populations(bred(allocator, seed, trials, last))
        ]
        beside = Beside()
        said = answers(sys.executable, "ray_pbt", asked)
        for each, theirs in zip(asked, said, strict=True):
            beside.compare(each, theirs, last)
        print(f"\nPBT beside Ray Tune's, {last} epochs: is the member of the worst, so that it")
        print("takes over from one of the best?")
        for what, equal in beside.figures.items():
            print(f"  {what:32} {sum(equal):6d} of {len(equal):6d}")


class Beside:
    """Decisions of PBT, equal to Ray's or not, by how many places have a result or are over."""

    def __init__(self) -> None:
        self.figures: dict[str, list[bool]] = {
            "all eight have a result": [],
            "not all eight yet": [],
            "some are over": [],
            "whom we chose is of Ray's best": [],
            "Ray's, as we read its rule": [],
        }

    def compare(self, asked: Asked, theirs: Sequence[Any], last: int) -> None:
        """Compare one population."""
        scores: dict[str, float] = {}  # as Ray knows them: of the judged
        over: set[str] = set()
        answered = iter(zip(asked.ours, theirs, strict=True))
        for kind, place, epoch, score in asked.job["steps"]:
            if kind == "over":
                over.add(place)
                scores.pop(place, None)
            elif kind == "reports":
                ours, said = next(answered)
                if said:
                    scores[place] = score
                    self.figures["Ray's, as we read its rule"].append(
                        said == list(_quarters(scores))
                    )
                if said and epoch < last:
                    self._judged(ours, place, said, "some are over" if over else len(scores))

    def _judged(self, ours: str, place: str, said: Sequence[Any], known: str | int) -> None:
        lower, upper = said
        whole = {POPULATION: "all eight have a result"}
        kind = known if isinstance(known, str) else whole.get(known, "not all eight yet")
        self.figures[kind].append(bool(ours) == (place in lower))
        if ours and place in lower:
            self.figures["whom we chose is of Ray's best"].append(ours in upper)


def _quarters(scores: dict[str, float]) -> tuple[list[str], list[str]]:
    """Return the worst and the best ceil(n / 4), at most the half, of those that aren't over."""
    ranked = sorted(scores, key=lambda place: scores[place])
    quarter = min(-(-len(ranked) // 4), len(ranked) // 2)
    return ranked[:quarter], ranked[len(ranked) - quarter :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--strategies", default=",".join(PLAYED).replace(", ", " "))
    asked = parser.parse_args()
    names = [name for name in PLAYED if name.replace(", ", " ") in asked.strategies.split(",")]
    table(names, asked.seeds, asked.trials)
    if "pbt" in names:
        beside_ray(asked.seeds, asked.trials)


if __name__ == "__main__":
    main()
