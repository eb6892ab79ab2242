"""Whole runs on the emulated EC2, on spot that comes and goes as a recorded pool did.

    python -m benchmarks.spot_emulated DATA [--pool "48 of 64"] [--faster 60] [--runs 6]
                                       [--strategy sha] [--deadline 240]

The trace goes by so many times faster: for an hour of it a minute of the run. Where the pool loses
room, the emulator reclaims what was launched last, without notice; where it has none, it refuses.
Told are the forecast of the plan, what was paid by the emulator's own records, and the least that
whoever knew the trace would have paid for the same work. About two minutes a run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from benchmarks.compare.omniscient import bound, work_of
from benchmarks.compare.replay import starts
from benchmarks.compare.traces import read_traces
from benchmarks.fault_runs_stage import TYPES, Stage
from benchmarks.spot import POOLS
from cloudtune.engine.record.timeline import read
from cloudtune.errors import CloudtuneError
from cloudtune.infra.aws import pricing
from cloudtune.model.catalog import pool
from cloudtune.model.plans import Rentable
from cloudtune.profiles.store import read as read_profiles

if TYPE_CHECKING:
    from benchmarks.compare.pools import SpotTrace
    from cloudtune.model.catalog import Offer

_KIND = TYPES["spot"]
_MOST = 2
_BUDGET = 2.0
_POLL_SECONDS = 0.5


def faster(trace: SpotTrace, times: float) -> SpotTrace:
    """Return the trace as it goes by so many times faster."""
    begins = tuple(start / times for start in trace.starts)
    return replace(trace, starts=begins, length=trace.length / times)


@dataclass
class Weather:
    """Lets the pool have what its trace says, from the first request for an instance on."""

    stage: Stage
    trace: SpotTrace
    reclaimed: int = 0

    def go_by(self, over: threading.Event) -> None:
        """Follow the trace until the run is over."""
        self.stage.control.capacity(_KIND, self.trace.room(0.0), "spot")
        while not over.is_set() and not self.stage.machines():
            over.wait(_POLL_SECONDS)
        began, room = time.monotonic(), self.trace.room(0.0)
        while not over.wait(_POLL_SECONDS):
            now = self.trace.room(time.monotonic() - began)
            if now == room:
                continue
            room = now
            with contextlib.suppress(CloudtuneError):  # the run is just ending
                self.stage.control.capacity(_KIND, room, "spot")
                self._take_back(room)

    def _take_back(self, room: int) -> None:
        held = [it for it in self.stage.alive() if it["market"] == "spot"]
        for machine in sorted(held, key=lambda it: float(it["launched_at"]))[room:]:
            self.stage.control.reclaim(machine["id"], 0.0)
            self.reclaimed += 1


def offers() -> dict[str, Offer]:
    """Return what can be rented, by market."""
    found = pricing.catalog("us-east-1", pricing.MARKETS).offers
    return {o.market: o for o in found if o.instance_type.name == _KIND and not o.zone}


def one_run(folder: Path, trace: SpotTrace, given: argparse.Namespace) -> dict[str, Any]:
    """Carry out a run on a trace, and return what came of it."""
    stage = Stage(folder, given.deadline, _BUDGET, "spot")
    over = threading.Event()
    weather = Weather(stage, trace)
    follower = threading.Thread(target=weather.go_by, args=(over,))
    try:
        _rewrite(folder / "x/experiment.yaml", trace, given.strategy)
        stage.start("plan", "experiment.yaml", "-o", "json")
        stage.finish()
        planned = _last_json(stage.out.read_text())
        follower.start()
        stage.start("run", "experiment.yaml", "--no-pace", "--force")
        code = stage.finish()
        over.set()
        follower.join()
        return _judged(stage, trace, given.deadline) | {
            "exit": code,
            "reclaimed": weather.reclaimed,
            "forecast": planned["plan"]["forecast"]["dollars"],
        }
    finally:
        over.set()
        stage.close()


def _rewrite(path: Path, trace: SpotTrace, strategy: str) -> None:
    """Have the experiment rent on any market, by how the pool behaves."""
    told = f"losses_per_hour: {trace.losses:.3f}, availability: {trace.availability:.3f}"
    text = path.read_text().replace("market: spot", f"market: any, spot: {{{told}}}")
    path.write_text(f"{text}strategy: {strategy}\n")


def _last_json(text: str) -> dict[str, Any]:
    return dict(json.loads(text[text.index("\n{") :]))


def _judged(stage: Stage, trace: SpotTrace, deadline: float) -> dict[str, Any]:
    by_market, known = offers(), read(stage.entries())
    ends = {it["id"]: it["shutting_down_at"] or time.time() for it in stage.machines()}
    paid = {
        market: sum(
            offer.charge(ends[it["id"]] - it["launched_at"])
            for it in stage.machines()
            if it["market"] == market
        )
        for market, offer in by_market.items()
    }
    (profile,) = read_profiles(stage.folder / "x/profile.json")
    rentables = [Rentable(offer, profile, _MOST) for offer in by_market.values()]
    pools = {pool(by_market["spot"]): trace}
    least = bound(work_of(known, rentables), rentables, pools, most=_MOST, until=deadline)
    refused = sum(it.refusal is not None for it in known.instances.values())
    seconds = max(ends.values(), default=0.0) - min(
        (it["launched_at"] for it in stage.machines()), default=0.0
    )
    return {
        "paid": sum(paid.values()),
        **{f"paid {market}": dollars for market, dollars in paid.items()},
        "bound": least,
        "refused": refused,
        "seconds": seconds,
        "left": len(stage.alive()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--pool", choices=list(POOLS), default="48 of 64")
    parser.add_argument("--faster", type=float, default=60.0)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--strategy", default="sha")
    parser.add_argument("--deadline", type=float, default=240.0)
    given = parser.parse_args()
    file, where = POOLS[given.pool]
    trace = faster(read_traces(given.data / file, where)[0].trace, given.faster)
    found = []
    for number, start in enumerate(starts(trace.length, given.runs)):
        folder = Path(tempfile.mkdtemp(prefix="ct-spot-"))
        row = one_run(folder, trace.begun_at(start), given)
        shutil.rmtree(folder, ignore_errors=True)
        found.append(row)
        said = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
        print(number, said, flush=True)
    forecast, paid = mean(row["forecast"]["mean"] for row in found), mean(r["paid"] for r in found)
    least = mean(row["bound"] for row in found)
    print(
        f"forecast ${forecast:.3f}, paid ${paid:.3f} ({paid / forecast - 1:+.0%}), "
        f"over the bound {paid / least:.2f}; exit codes {[row['exit'] for row in found]}"
    )


if __name__ == "__main__":
    main()
