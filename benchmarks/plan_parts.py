"""What the parts of one `cloudtune plan` take, in a process of its own: part of plan_time.py.

    python -m benchmarks.plan_parts OUT -- EXPERIMENT [OPTION ...]

Runs the command with a stopwatch at its public functions, and writes what each took to OUT as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.runner import parser

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
    options = parser(__doc__)
    options.add_argument("out", type=Path)
    options.add_argument("command", nargs="+")
    given = options.parse_args()
    given.out.write_text(json.dumps(timed(given.command)), encoding="utf-8")


def timed(command: list[str]) -> list[tuple[str, float, float]]:
    """Return what the parts took, in order."""
    watch = Stopwatch()
    wall, cpu = time.perf_counter(), time.process_time()
    with watch.part("imports"):
        from cloudtune.cli.main import cli  # noqa: PLC0415  what is measured
    watch_all(watch)
    with contextlib.redirect_stdout(io.StringIO()):
        cli.main(["plan", *command], standalone_mode=False)
    whole = (time.perf_counter() - wall, time.process_time() - cpu)
    rest = [whole[n] - sum(part[n + 1] for part in watch.parts) for n in (0, 1)]
    return [*watch.parts, ("printing and the rest", *rest)]


def watch_all(watch: Stopwatch) -> None:
    from cloudtune.cli import plan as cli_plan  # noqa: PLC0415
    from cloudtune.planners.exact import ExactPlanner  # noqa: PLC0415
    from cloudtune.planners.naive import NaivePlanner  # noqa: PLC0415
    from cloudtune.planners.static import StaticPlanner  # noqa: PLC0415
    from cloudtune.planning.forecasting import PlayedRuns, StageDraws  # noqa: PLC0415

    watch.watch(cli_plan, "load_problem", lambda *_: "read experiment, profiles and prices")
    for planner in (ExactPlanner, NaivePlanner, StaticPlanner):
        watch.watch(planner, "plan", _asked)
    watch.watch(ExactPlanner, "front", lambda *_: "front")
    watch.watch(StageDraws, "forecast", lambda *_: "forecast by draws")
    watch.watch(PlayedRuns, "forecast", lambda *_: "forecast by simulated runs")


def _asked(planner: Any, request: Any) -> str:
    limits = "" if request.limits.deadline is None else " in time"
    offers = len(request.rentables)
    return f"{planner.name} plan, least {request.objective}{limits}, {offers} offers"


if __name__ == "__main__":
    main()
