"""What is done to the runs of the fault campaign on the real loop, drawn from a seed."""

from __future__ import annotations

import contextlib
import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.fault_runs_stage import PHASES, TYPES
from cloudtune.errors import CloudtuneError
from cloudtune.infra.aws import pricing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.fault_runs_stage import Stage
    from cloudtune.model.catalog import Offer

Fault: TypeAlias = "Mapping[str, Any]"
_LONGEST_PHASE = 240.0


@dataclass(frozen=True)
class Step:
    """Once the run has come to a phase, and so many seconds later: do that.

    `lasts`: how long a controller is away (inf: nobody resumes), a machine frozen, a notice.
    """

    phase: str
    delay: float
    what: str
    lasts: float = 0.0

    def __str__(self) -> str:
        return f"{self.what} ({self.phase} +{self.delay:.1f} s)"


@dataclass(frozen=True)
class Case:
    """One run of the campaign."""

    name: str
    deadline: float
    budget: float
    market: str = "on-demand"
    steps: tuple[Step, ...] = ()
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        kinds = [f"{fault['kind']}{_of(fault)}" for fault in self.faults]
        return ", ".join([*kinds, *map(str, self.steps)]) or "nothing"


def _of(fault: Fault) -> str:
    what = fault.get("code") or fault.get("action", "").removesuffix("Instances")
    return f" {what}" if what else ""


# ---- what can be done ----------------------------------------------------------------------------


def play(stage: Stage, case: Case) -> None:
    """Do to a run, step by step, what its case says; one that has ended is left alone."""
    for step in case.steps:
        if not stage.wait(lambda step=step: stage.in_phase(step.phase), _LONGEST_PHASE):  # type: ignore[misc]
            return
        if stage.wait(lambda: False, step.delay) or stage.code() is not None:
            return
        with contextlib.suppress(CloudtuneError):  # the machine in question is gone by now
            _ACTIONS[step.what](stage, step)


def _controller(stage: Stage, step: Step) -> None:
    stage.kill_controller()
    _away(stage, step)


def _controller_and_head(stage: Stage, step: Step) -> None:
    stage.kill_controller()
    stage.kill_head()
    _away(stage, step)


def _away(stage: Stage, step: Step) -> None:
    if math.isfinite(step.lasts):
        time.sleep(step.lasts)
        stage.start("resume")


def _dead_node(stage: Stage, _step: Step) -> None:
    for machine in stage.alive()[:1]:
        stage.control.kill(machine["id"])


def _frozen_node(stage: Stage, step: Step) -> None:
    for machine in stage.alive()[:1]:
        stage.control.freeze(machine["id"])
        if math.isfinite(step.lasts):
            stage.wait(lambda: False, step.lasts)
            stage.control.thaw(machine["id"])


def _gone_node(stage: Stage, _step: Step) -> None:
    for machine in stage.alive()[:1]:
        stage.terminate(machine["id"])


def _reclaim(stage: Stage, step: Step) -> None:
    for machine in stage.alive()[:1]:
        stage.control.reclaim(machine["id"], step.lasts)


def _worker(stage: Stage, _step: Step) -> None:
    stage.kill([child for each in stage.zygotes() for child in each.children()][:1])


def _zygote(stage: Stage, _step: Step) -> None:
    stage.kill(stage.zygotes()[:1])


def _agent(stage: Stage, _step: Step) -> None:
    stage.kill([parent for each in stage.zygotes()[:1] if (parent := each.parent())])


def _hung_worker(stage: Stage, _step: Step) -> None:
    stage.freeze([child for each in stage.zygotes() for child in each.children()][:1])


def _hang_up(stage: Stage, _step: Step) -> None:
    stage.hang_up()


def _no_storage(stage: Stage, step: Step) -> None:
    stage.take_storage_away()
    stage.wait(lambda: False, step.lasts)
    stage.bring_storage_back()


_ACTIONS: dict[str, Callable[[Stage, Step], None]] = {
    "kill -9 controller": _controller,
    "kill -9 controller and head": _controller_and_head,
    "dead node": _dead_node,
    "frozen node": _frozen_node,
    "node ended by others": _gone_node,
    "reclaim": _reclaim,
    "kill -9 worker": _worker,
    "kill -9 zygote": _zygote,
    "kill -9 agent": _agent,
    "hung worker": _hung_worker,
    "no terminal": _hang_up,
    "no storage": _no_storage,
}


# ---- drawing cases -------------------------------------------------------------------------------


def case(number: int, seed: int) -> Case:
    """Return a run: its kind by turns, everything else by chance."""
    name, draw = _TURNS[number % len(_TURNS)]
    rng = random.Random(1000 * seed + number)
    steps, faults, market = draw(rng)
    deadline = rng.choice((90.0, 120.0, 180.0))
    budget = offer_on(market).charge(60.0 * rng.choice((3.5, 5.0, 8.0)))
    ordered = tuple(sorted(steps, key=lambda step: PHASES.index(step.phase)))
    return Case(name, deadline, budget, market, ordered, tuple(faults))


def offer_on(market: str) -> Offer:
    """Return what the campaign rents on a market."""
    offers = pricing.catalog("us-east-1", ("on-demand", "spot")).offers
    return next(o for o in offers if (o.instance_type.name, o.market) == (TYPES[market], market))


_Drawn: TypeAlias = "tuple[list[Step], list[Fault], str]"


def _step(rng: random.Random, what: str, phases: tuple[str, ...] = PHASES) -> Step:
    phase = rng.choice(phases)
    delay = rng.uniform(0.0, 9.0 if phase == "boot" else 3.0)
    return Step(phase, delay, what, _lasting(rng, what))


def _lasting(rng: random.Random, what: str) -> float:
    if what == "frozen node":
        return rng.choice((5.0, 20.0, math.inf))
    if what == "reclaim":
        return rng.choice((0.0, 3.0, 12.0))
    return rng.choice((0.0, 2.0, 8.0, 20.0))


def _deaths(rng: random.Random) -> _Drawn:
    phases = rng.sample(PHASES, rng.choice((1, 2, 3)))
    return [_step(rng, "kill -9 controller", (phase,)) for phase in phases], [], "on-demand"


def _deaths_of_both(rng: random.Random) -> _Drawn:
    return [_step(rng, "kill -9 controller and head", PHASES[:3])], [], "on-demand"


def _nodes(rng: random.Random) -> _Drawn:
    what = rng.choice(("dead node", "node ended by others", "dead node"))
    return [_step(rng, what, PHASES[:3])], [], "on-demand"


def _freezes(rng: random.Random) -> _Drawn:
    return [_step(rng, "frozen node", PHASES[1:3])], [], "on-demand"


def _workers(rng: random.Random) -> _Drawn:
    kinds = rng.sample(("kill -9 worker", "kill -9 zygote", "kill -9 agent"), 2)
    return [_step(rng, what, PHASES[1:3]) for what in kinds], [], "on-demand"


def _answers(rng: random.Random) -> _Drawn:
    return [], rng.sample(_faults(rng), 3), "on-demand"


def _reclaims(rng: random.Random) -> _Drawn:
    return [_step(rng, "reclaim", PHASES[:3]), _step(rng, "reclaim", PHASES[1:3])], [], "spot"


def _abandoned(rng: random.Random) -> _Drawn:
    phase = rng.choice(PHASES[:3])
    delay = rng.uniform(0.0, 9.0 if phase == "boot" else 3.0)
    return [Step(phase, delay, "kill -9 controller", math.inf)], [], "on-demand"


def _mixture(rng: random.Random) -> _Drawn:
    others = ("dead node", "reclaim", "kill -9 worker", "kill -9 agent", "kill -9 zygote")
    kinds = ["kill -9 controller", *rng.sample(others, 2)]
    return [_step(rng, what) for what in kinds], rng.sample(_faults(rng), 2), "spot"


def _surroundings(rng: random.Random) -> _Drawn:
    kinds = rng.sample(("hung worker", "no terminal", "no storage"), 2)
    return [_step(rng, what, PHASES[1:3]) for what in kinds], [], "on-demand"


_TURNS: tuple[tuple[str, Callable[[random.Random], _Drawn]], ...] = (
    ("controller", _deaths),
    ("node", _nodes),
    ("worker", _workers),
    ("answers", _answers),
    ("controller and head", _deaths_of_both),
    ("reclaim", _reclaims),
    ("abandoned", _abandoned),
    ("mixture", _mixture),
    ("controller", _deaths),
    ("frozen", _freezes),
    ("answers", _answers),
    ("mixture", _mixture),
    ("surroundings", _surroundings),
    ("surroundings", _surroundings),
)


def _faults(rng: random.Random) -> list[Fault]:
    """Return what EC2 may do; each of its own kind."""
    lost, seed = {"kind": "lost-answer"}, rng.randrange(1000)
    return [
        {**lost, "action": "RunInstances", "times": rng.choice((1, 2))},
        {**lost, "action": "RunInstances", "answer": "InternalError", "rate": 0.5, "seed": seed},
        {**lost, "action": "TerminateInstances", "times": 2},
        {"kind": "throttle", "action": "DescribeInstances", "burst": 3, "per_second": 1},
        {"kind": "throttle", "action": "RunInstances", "burst": 1, "per_second": 0.2},
        {"kind": "hidden", "calls": 4, "seconds": rng.choice((2, 6))},
        {"kind": "slow-boot", "seconds": 15},
        {"kind": "slow-end", "seconds": 15},
        {"kind": "failed-boot", "times": 1},
        {"kind": "no-boot", "times": 1},
        _error("RunInstances", "InsufficientInstanceCapacity", rng.choice((3, 8))),
        _error("DescribeInstances", "InternalError", 10),
        _error("TerminateInstances", "InternalError", 5),
    ]


def _error(action: str, code: str, times: int) -> Fault:
    return {"kind": "error", "action": action, "code": code, "message": code, "times": times}
