"""What the parts of one `cloudtune plan` take, in a process of its own: part of plan_time.py.

    python -m benchmarks.plan_parts OUT [--top N] -- EXPERIMENT [OPTION ...]

Runs the command with a stopwatch at its public functions, and writes what each took to OUT as JSON.
With --top it runs under cProfile instead, and writes the N functions that take most themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import io
import json
import pstats
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass
class Stopwatch:
    """Seconds by part, by the clock and of the processor; what a part calls counts as its own."""

    parts: list[tuple[str, float, float]] = field(default_factory=list)
    _inside: bool = False

    @contextlib.contextmanager
    def part(self, label: str) -> Iterator[None]:
        if self._inside:
            yield
            return
        self._inside = True
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self._inside = False
            self.parts.append((label, time.perf_counter() - wall, time.process_time() - cpu))

    def watch(self, owner: Any, name: str, label: Callable[..., str]) -> None:
        """Measure each call of a function; `label` names it by its arguments."""
        called = getattr(owner, name)

        def measured(*args: Any, **options: Any) -> Any:
            with self.part(label(*args, **options)):
                return called(*args, **options)

        setattr(owner, name, measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--top", type=int)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    told = profiled(given.command, given.top) if given.top else timed(given.command)
    given.out.write_text(json.dumps(told), encoding="utf-8")


def timed(command: list[str]) -> dict[str, Any]:
    """Return what the parts took, in order."""
    watch = Stopwatch()
    wall, cpu = time.perf_counter(), time.process_time()
    with watch.part("imports"):
        from cloudtune.cli.main import cli  # noqa: PLC0415  what is measured
    watch_all(watch)
    with contextlib.redirect_stdout(io.StringIO()):
        cli.main(["plan", *command], standalone_mode=False)
    whole = (time.perf_counter() - wall, time.process_time() - cpu)
    known = [sum(seconds) for seconds in list(zip(*watch.parts, strict=True))[1:]]
    rest = ("printing and the rest", whole[0] - known[0], whole[1] - known[1])
    return {"parts": [*watch.parts, rest], "wall": whole[0], "cpu": whole[1]}


def watch_all(watch: Stopwatch) -> None:
    from cloudtune.cli import plan as cli_plan  # noqa: PLC0415
    from cloudtune.jobs import alternatives, planning  # noqa: PLC0415
    from cloudtune.planners.exact import ExactPlanner  # noqa: PLC0415
    from cloudtune.planners.naive import NaivePlanner  # noqa: PLC0415
    from cloudtune.planners.static import StaticPlanner  # noqa: PLC0415

    watch.watch(cli_plan, "load_experiment", lambda *_: "read the experiment")
    watch.watch(cli_plan, "load_problem", lambda *_: "read profiles and prices")
    for planner in (ExactPlanner, NaivePlanner, StaticPlanner):
        watch.watch(planner, "plan", _asked)
    watch.watch(ExactPlanner, "front", lambda *_: "front")
    for module, draws in ((planning, "1,000"), (alternatives, "200")):
        watch.watch(module, "outlook", lambda *_, draws=draws, **__: f"outlook, {draws} samples")


def _asked(planner: Any, request: Any) -> str:
    limits = "" if request.limits.deadline is None else " in time"
    offers = len(request.rentables)
    return f"{planner.name} plan, least {request.objective}{limits}, {offers} offers"


def profiled(command: list[str], top: int) -> dict[str, Any]:
    """Return the functions that take most themselves, beyond what they call."""
    from cloudtune.cli.main import cli  # noqa: PLC0415

    profile = cProfile.Profile()
    with contextlib.redirect_stdout(io.StringIO()):
        profile.runcall(cli.main, ["plan", *command], standalone_mode=False)
    stats = pstats.Stats(profile)
    rows = sorted(stats.stats.items(), key=lambda item: item[1][2], reverse=True)[:top]  # type: ignore[attr-defined]
    return {
        "whole": stats.total_tt,  # type: ignore[attr-defined]
        "rows": [(_where(place), calls, own, total) for place, (_, calls, own, total, _) in rows],
    }


def _where(place: tuple[str, int, str]) -> str:
    file, line, name = place
    return name if file == "~" else f"{'/'.join(Path(file).parts[-2:])}:{line} {name}"


if __name__ == "__main__":
    main()
