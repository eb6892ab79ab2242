"""How often runs end within the percentiles that were forecast: 90 % would be right.

    python -m benchmarks.coverage simulated [--runs 1000] [--out FILE]
    python -m benchmarks.coverage emulated [--runs 40] [--out FILE]

`simulated` are random jobs (those of benchmarks/reality.py) whose profiles are wrong: in the world
epochs take 0.7 to 1.5 times as long, and launches, boots and starts 0.7 to 1.5 times, each drawn
evenly on a logarithmic scale. Told are the share of runs between the 5th and 95th percentile of the
forecast with what is assumed of profiles, with what was measured alone (as before), and without
what a run plans anew; and the same where wide trials are slower besides (`wide`).

`emulated` are whole runs on the emulated cloud, short ones, each with a seed of its own, by a
profile that is measured once. They take about a minute each.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.reality import Came, Job, drawn, off, play
from cloudtune.model.plans import Limits
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.estimate.outlook import outlook
from cloudtune.profiles.priors import believed

if TYPE_CHECKING:
    from cloudtune.model.plans import Forecast

EXAMPLE = Path(__file__).parents[1] / "examples/digits/experiment.yaml"
SHORT = ("--trials", "4", "--deadline", "5m", "--budget", "2")
_LAST_EPOCH = 8
_KINDS = ("assumed", "as planned", "measured alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["simulated", "emulated"])
    parser.add_argument("--runs", type=int)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.what == "simulated":
        simulated(given.runs or 1000, given.out)
    else:
        emulated(given.runs or 40, given.out)


# ---- simulated ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """A run, and the forecasts that were made of it, by kind."""

    came: Came
    forecasts: dict[str, Forecast]

    def place(self, kind: str, what: str) -> int:
        """Return -1, 0 or 1: below, between or above the percentiles."""
        spread, value = getattr(self.forecasts[kind], what), getattr(self.came, what)
        return int(value > spread.p95 + 1e-9) - int(value < spread.p5 - 1e-9)


def simulated(runs: int, out: Path | None) -> None:
    """Print the coverage of simulated runs with wrong profiles."""
    began, rows = time.perf_counter(), list[dict[str, object]]()
    for world, count in (("narrow", runs), ("wide", max(1, runs // 4))):
        outcomes: list[Outcome] = []
        number = 0
        while len(outcomes) < count:
            number += 1
            job = drawn(number)
            if job is not None:
                outcomes.append(_outcome(job, number, wide=world == "wide"))
                rows.append({"world": world, "job": number, **_row(outcomes[-1])})
        print(f"{world}: {count} runs, of jobs 1 to {number}")
        for kind in _KINDS:
            for what in ("seconds", "dollars"):
                places = [each.place(kind, what) for each in outcomes]
                shares = [places.count(place) / count for place in (0, -1, 1)]
                told = "within {:6.1%}   below {:5.1%}   above {:5.1%}".format(*shares)
                print(f"  {kind:15} {what:8} {told}", flush=True)
    print(f"in {time.perf_counter() - began:.0f} s")
    if out is not None:
        _write(out, rows)


def _outcome(job: Job, number: int, *, wide: bool) -> Outcome:
    if not wide:
        draw = random.Random(f"wrong {number}")
        pace, delay = (math.exp(draw.uniform(math.log(0.7), math.log(1.5))) for _ in range(2))
        job = replace(job, real=tuple(off(each, pace, 1.0, delay) for each in job.rentables))
    measured = job.rentables
    known = tuple(replace(r, profile=believed(r.profile, "")) for r in measured)
    job = replace(job, rentables=known)
    plan, limits = job.plan(), job.limits
    usable = max(1.0, (limits.deadline or math.inf) - job.brakes.drain)
    work = tuple(stage.stage for stage in plan.stages)
    asked = PlanRequest(work, known, Limits(usable, limits.budget), job.max_instances)
    forecasts = {
        "assumed": outlook(asked, plan, reacts=True),
        "as planned": outlook(asked, plan),
        "measured alone": outlook(replace(asked, rentables=measured), plan),
    }
    return Outcome(play(job), forecasts)


def _row(outcome: Outcome) -> dict[str, object]:
    came, found = outcome.came, outcome.forecasts["assumed"]
    told = {f"{kind} {what}": outcome.place(kind, what) for kind in _KINDS for what in _WHAT}
    return {
        "ending": came.ending,
        **{f"{what} {p}": getattr(getattr(found, what), p) for what in _WHAT for p in _PERCENT},
        **{what: getattr(came, what) for what in _WHAT},
        **told,
    }


_WHAT = ("seconds", "dollars")
_PERCENT = ("p5", "p50", "p95")


# ---- emulated ----------------------------------------------------------------------------------


def emulated(runs: int, out: Path | None) -> None:
    """Print the coverage of whole runs on the emulated cloud."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="ct-cov-") as home:
        experiment = _short(Path(home))
        environment = {**os.environ, "CLOUDTUNE_HOME": str(Path(home, "h"))}
        _call(["profile", str(experiment)], environment)
        for seed in range(runs):
            began = time.time()
            options = [*SHORT, "--seed", str(seed)]
            planned = json.loads(
                _call(["plan", str(experiment), *options, "-o", "json"], environment)
            )
            _call(["run", str(experiment), *options, "--yes"], environment)
            told = json.loads(_call(["report", "-o", "json"], environment))
            rows.append({"seed": seed, **_against(planned["plan"]["forecast"], told["figures"])})
            print(rows[-1], f"{time.time() - began:.0f} s", flush=True)
    for what in _WHAT:
        places = [row[f"{what} place"] for row in rows]
        shares = [places.count(place) / len(rows) for place in (0, -1, 1)]
        print(f"{what:8} " + "within {:6.1%}   below {:5.1%}   above {:5.1%}".format(*shares))
    if out is not None:
        _write(out, rows)


def _short(folder: Path) -> Path:
    """Return the digits example with fewer epochs, in a folder of its own."""
    for name in ("train.py", "experiment.yaml"):
        (folder / name).write_bytes(EXAMPLE.with_name(name).read_bytes())
    path = folder / "experiment.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(
        text.replace("epochs: {min: 8, max: 64}", f"epochs: {{min: 2, max: {_LAST_EPOCH}}}"),
        encoding="utf-8",
    )
    return path


def _call(arguments: list[str], environment: dict[str, str]) -> str:
    """Return what a command says; a run may end with any code."""
    done = subprocess.run(
        [sys.executable, "-m", "cloudtune", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout and done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def _against(forecast: dict[str, Any], actual: dict[str, Any]) -> dict[str, object]:
    found: dict[str, object] = {}
    for what in _WHAT:
        value, spread = actual[what], forecast[what]
        found[what] = value
        found.update({f"{what} {percent}": spread[percent] for percent in _PERCENT})
        found[f"{what} place"] = int(value > spread["p95"]) - int(value < spread["p5"])
    return found


def _write(out: Path, rows: list[dict[str, object]]) -> None:
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
