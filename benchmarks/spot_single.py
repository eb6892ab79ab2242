"""One job on one instance, on spot with a deadline: ours beside the policies of "Can't Be Late".

    python -m benchmarks.spot_single DATA [--runs 20] [--pools 79,48] [--fraction 0.8] [--most 1,2]

The setting of Wu et al. (NSDI 2024), section 6: 48 hours of work, a deadline of 48 h / 0.8 = 60 h,
a changeover (whatever begins to train pays so long for nothing) of 0.2 h; prices of p3.2xlarge,
$3.06 an hour on demand and $0.918 on spot. DATA is the folder of the traces (`benchmarks.spot` has
the list); starts are spread evenly over each, and a trace that ends begins anew.

- `greedy` (3.4): spot while there is some, nothing where there is none; once idle with less than
  two changeovers to spare on demand to the end.
- `uniform` (5.2.2), Uniform Progress: once idle and behind the straight line from nothing to all of
  the work at the deadline, on demand; spot as soon as there is some; from on-demand only if two
  changeovers ahead of the line. Safety net as above, which also bars the way from on-demand to
  spot. On demand and so far ahead, without spot, the text leaves open whether it goes on there:
  `uniform` does (the figures are better than those of `uniform idle`, which doesn't).
- `ours`: a planned run (`sha`) of one trial, 480 epochs of 6 minutes, the changeover in boot and
  start; what is lost of an epoch comes on top. The policy of a real run, which isn't told whether
  there is spot: it asks, and is refused; and which leaves 5 % of the time for surprises. `ours 1`
  may hold one instance, `ours 2` two: one trains while the other boots.
- `knows`: the least that whoever knew the trace could pay on one instance, changeovers and all
  (backward induction, exact on the grid of ticks). `bound`: without changeovers, as beside each
  run of `simulate --spot-trace`.

Hours are paid for, changeovers included. Virtual time; 2 to 15 s for each run of ours.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from benchmarks.compare.omniscient import Source, least_dollars
from benchmarks.compare.pools import Priced
from benchmarks.compare.replay import replay, starts
from benchmarks.compare.traces import read_traces
from benchmarks.spot import POOLS
from cloudtune.engine.spot_pools import UNLIMITED
from cloudtune.model.catalog import InstanceType, Offer, pool
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.model.trial import Trial
from cloudtune.policy.base import Brakes, Metric, drain_seconds
from cloudtune.policy.context import BuildContext
from cloudtune.policy.planned.stages import plan_stages
from cloudtune.policy.registry import chosen, components, run_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.compare.pools import SpotTrace
    from cloudtune.policy.run import RunPolicy

TICK = 120.0
"""Seconds: the policies of the paper look, and the dynamic program decides, so often."""
EPOCH = 360.0
ON_DEMAND, SPOT = 3.06, 0.918


@dataclass(frozen=True)
class Job:
    """Hours of work, until the deadline, and of a changeover."""

    work: float = 48.0
    deadline: float = 60.0
    changeover: float = 0.2

    def ticks(self, hours: float) -> int:
        """Return so many hours in ticks."""
        return round(hours * 3600.0 / TICK)


@dataclass(frozen=True)
class Came:
    """What a job came to; `late` by the deadline."""

    dollars: float
    on_demand_hours: float
    spot_hours: float
    late: bool


def there(trace: SpotTrace, start: float, ticks: int) -> list[bool]:
    """Return of each tick whether there is spot all through it."""
    begun = trace.begun_at(start)
    found = [True] * ticks
    for piece in begun.pieces(0.0, ticks * TICK):
        if piece.instances < 1:
            last = min(ticks, math.ceil(piece.end / TICK))
            found[int(piece.begin // TICK) : last] = [False] * (last - int(piece.begin // TICK))
    return found


# ---- the policies of the paper -------------------------------------------------------------------


@dataclass
class State:
    """Where a job is at a tick: what it holds, and ticks of work and time that are left."""

    job: Job
    left: int
    time: int
    holds: str = "idle"

    @property
    def safe(self) -> bool:
        """Whether two changeovers fit besides the work."""
        return self.time >= self.left + 2 * self.job.ticks(self.job.changeover)

    def ahead(self, ticks: int = 0) -> bool:
        """Whether it is no further back than the line will be in so many ticks."""
        job = self.job
        gone = job.ticks(job.deadline) - self.time + ticks
        return job.ticks(job.work) - self.left >= gone * job.work / job.deadline


def greedy(state: State, spot: bool) -> str:
    """Return what to hold: spot or nothing, and at the last moment on-demand for good."""
    if state.holds == "on-demand" or (state.holds == "idle" and not state.safe):
        return "on-demand"
    return "spot" if spot else "idle"


def uniform(state: State, spot: bool, *, stays: bool = True) -> str:
    """Return what to hold by Uniform Progress; `stays` on demand while there is no spot."""
    if state.holds == "spot":
        return "spot"
    if not state.safe:
        return "on-demand"
    if state.holds == "on-demand":
        if not state.ahead(2 * state.job.ticks(state.job.changeover)):
            return "on-demand"
        return "spot" if spot else "on-demand" if stays else "idle"
    if spot:
        return "spot"
    return "idle" if state.ahead() else "on-demand"


def uniform_idle(state: State, spot: bool) -> str:
    """Return what to hold by Uniform Progress, which holds nothing where it is ahead."""
    return uniform(state, spot, stays=False)


Policy: TypeAlias = "Callable[[State, bool], str]"
"""Says what to hold at a tick, of whether there is spot: "idle", "spot" or "on-demand"."""


def carried_out(job: Job, policy: Policy, spot: Sequence[bool]) -> Came:
    """Return what a policy comes to; it goes on after the deadline, if it must."""
    state = State(job, job.ticks(job.work), job.ticks(job.deadline))
    paid, waits = {"idle": 0, "spot": 0, "on-demand": 0}, 0
    while state.left > 0:
        has = state.time > 0 and spot[len(spot) - state.time]
        if state.holds == "spot" and not has:
            state.holds = "idle"
        wanted = policy(state, has)
        if wanted != state.holds:
            state.holds, waits = wanted, job.ticks(job.changeover)
        paid[state.holds] += 1
        if state.holds != "idle":
            state.left, waits = state.left - (waits == 0), max(0, waits - 1)
        state.time -= 1
    hours = {kind: ticks * TICK / 3600.0 for kind, ticks in paid.items()}
    dollars = hours["spot"] * SPOT + hours["on-demand"] * ON_DEMAND
    return Came(dollars, hours["on-demand"], hours["spot"], state.time < 0)


def knows(job: Job, spot: Sequence[bool]) -> Came:
    """Return the least that the work costs if the trace is known, by backward induction.

    Of each number of ticks of work that are left: dollars, and ticks on demand and on spot.
    """
    work, delay = job.ticks(job.work), job.ticks(job.changeover)
    prices = {"spot": SPOT * TICK / 3600.0, "on-demand": ON_DEMAND * TICK / 3600.0}
    over = np.full((3, work + 1), math.inf)
    over[:, 0] = 0.0
    idle: list[np.ndarray] = [over] * (len(spot) + delay + 1)
    held = {kind: list(idle) for kind in prices}

    def paying(after: np.ndarray, kind: str, ticks: int) -> np.ndarray:
        row = [1, 2][kind == "spot"]
        found = after.copy()
        found[0] += ticks * prices[kind]
        found[row] += ticks
        return found

    def least(ways: Iterable[np.ndarray]) -> np.ndarray:
        first, *others = ways
        for other in others:
            first = np.where(other[0] < first[0], other, first)
        return first

    for at in range(len(spot) - 1, -1, -1):
        kinds = ["on-demand"] + ["spot"] * all(spot[at : at + delay])
        begun = (paying(held[kind][at + delay], kind, delay) for kind in kinds)
        idle[at] = least([idle[at + 1], *begun])
        idle[at][:, 0] = 0.0
        for kind, rows in held.items():
            rows[at] = idle[at]
            if kind != "spot" or spot[at]:
                trained = paying(rows[at + 1][:, :-1], kind, 1)
                rows[at] = idle[at].copy()
                rows[at][:, 1:] = least([idle[at][:, 1:], trained])
    dollars, dear, cheap = (float(each) for each in idle[0][:, work])
    return Came(dollars, dear * TICK / 3600.0, cheap * TICK / 3600.0, math.isinf(dollars))


def bound(job: Job, trace: SpotTrace, start: float) -> float:
    """Return the bound without changeovers."""
    until = job.deadline * 3600.0
    always = (Priced(0.0, until, UNLIMITED, ON_DEMAND),)
    pieces = trace.begun_at(start).priced(0.0, until)
    cheap = tuple(piece._replace(usd_per_hour=SPOT) for piece in pieces)
    return least_dollars(job.work * 3600.0, [Source(1.0, always), Source(1.0, cheap)], 1)


# ---- ours ----------------------------------------------------------------------------------------


class _One:
    """A sampler of one trial."""

    def __init__(self) -> None:
        self._left = [Trial("t00", {"x": 0})]

    def more(self, _trials: int) -> int:
        """Return 0: there are those that were given."""
        return 0

    def ask(self) -> Trial | None:
        return self._left.pop() if self._left else None

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Learn nothing."""


def rentables(job: Job, most: int) -> tuple[Rentable, ...]:
    """Return the instance on both markets; a changeover is launch, boot and start."""
    kind = InstanceType("p3.2xlarge", 1, "V100", 16_384, 8, 62_464)
    part = Measurement(job.changeover * 1800.0)
    profile = ScalingProfile(
        kind.name,
        {1.0: Measurement(EPOCH)},
        launch=Measurement(1.0),
        boot=part,
        start=part,
        resize=part,
        release=Measurement(1.0),
        script_hash="",
        measured_at="2026-11-22",
        source="Can't Be Late, section 6",
    )
    offers = (
        Offer(kind, "spot", "r", SPOT, interruptions_per_hour=0.1),
        Offer(kind, "on-demand", "r", ON_DEMAND),
    )
    return tuple(Rentable(offer, profile, most) for offer in offers)


def policy_of(job: Job, most: int) -> RunPolicy:
    """Return the policy of a planned run of one trial."""
    made = rentables(job, most)
    brakes = Brakes(tick=600.0, drain=drain_seconds(*(each.profile for each in made)))
    epochs = round(job.work * 3600.0 / EPOCH)
    limits = Limits(job.deadline * 3600.0, 2 * ON_DEMAND * job.deadline)
    context = BuildContext(made, most, limits, "max", epochs, epochs, 2, 1, 0)
    plan = plan_stages("sha", context, brakes, trials=1)
    parts = components(context, _One(), chosen("sha"), brakes, plan)
    metric = Metric("acc", "max")
    return run_policy(context, parts, metric, brakes, heartbeat=False, checked=False)


def ours(job: Job, trace: SpotTrace, start: float, most: int) -> Came:
    """Return what our run comes to."""
    made = rentables(job, most)
    pools = {pool(each.offer): trace for each in made if each.offer.market == "spot"}
    found = replay(policy_of(job, most), made, pools, start=start)
    late = not found.finished or bool(found.violations)
    return Came(found.dollars, found.on_demand_hours, found.spot_hours, late)


# ---- the table -----------------------------------------------------------------------------------

PAPER: dict[str, Policy] = {"greedy": greedy, "uniform": uniform, "uniform idle": uniform_idle}


def compared(job: Job, trace: SpotTrace, runs: int, caps: Sequence[int]) -> dict[str, list[Came]]:
    """Return what each policy comes to from so many starts; `bound` has no hours."""
    found: dict[str, list[Came]] = {}
    for start in starts(trace.length, runs):
        spot = there(trace, start, job.ticks(job.deadline))
        came = {name: carried_out(job, policy, spot) for name, policy in PAPER.items()}
        came |= {f"ours {most}": ours(job, trace, start, most) for most in caps}
        came["knows"] = knows(job, spot)
        came["bound"] = Came(bound(job, trace, start), math.nan, math.nan, late=False)
        for name, each in came.items():
            found.setdefault(name, []).append(each)
    return found


def row(name: str, found: dict[str, list[Came]]) -> str:
    """Return hours on demand and dollars of each policy, means of the runs, and who was late."""
    cells = []
    for each in found.values():
        hours, dollars = (
            mean(getattr(c, of) for c in each) for of in ("on_demand_hours", "dollars")
        )
        late = sum(c.late for c in each)
        said = "" if math.isnan(hours) else f"{hours:.1f} h, "
        cells.append(f"{said}${dollars:.1f}" + (f", {late} late" if late else ""))
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--pools", default=",".join(POOLS))
    parser.add_argument("--fraction", type=float, default=0.8)
    parser.add_argument("--most", default="1,2")
    given = parser.parse_args()
    job, caps = Job(deadline=48.0 / given.fraction), [int(n) for n in given.most.split(",") if n]
    everything: dict[str, list[Came]] = {}
    for name in given.pools.split(","):
        file, where = POOLS[name]
        trace = read_traces(given.data / file, where)[0].trace
        found = compared(job, trace, given.runs, caps)
        if not everything:
            print(f"| pool | {' | '.join(found)} |\n|{'---|' * (len(found) + 1)}")
        print(row(name, found), flush=True)
        for kind, runs in found.items():
            everything.setdefault(kind, []).extend(runs)
    print(row("all", everything))


if __name__ == "__main__":
    main()
