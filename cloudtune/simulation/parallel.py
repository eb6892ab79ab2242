"""Jobs played in virtual time: what `cloudtune simulate` shows."""

from __future__ import annotations

import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

from cloudtune.simulation.case import play

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cloudtune.simulation.benchmark import Benchmark
    from cloudtune.simulation.case import Case, Result


_FEW = 16
"""So few runs are over before another process has begun."""


def play_all(benchmark: Benchmark, cases: Sequence[Case], processes: int = 1) -> Iterator[Result]:
    """Yield what each run comes to, in order; in however many processes, the same."""
    if processes == 1 or len(cases) <= _FEW:
        yield from (play(benchmark, case) for case in cases)
        return
    workers = min(processes, len(cases))
    share = max(1, min(16, len(cases) // (4 * workers)))
    # Fresh processes: a fork would take over whatever threads pyarrow has begun.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, fresh, _begin, (benchmark,)) as pool:
        yield from pool.map(_play, cases, chunksize=share)


_benchmark: Benchmark


def _begin(benchmark: Benchmark) -> None:
    """Keep the benchmark for the runs of this process; who is interrupted is the parent alone."""
    global _benchmark  # noqa: PLW0603  what a worker is given at its begin
    _benchmark = benchmark
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _play(case: Case) -> Result:
    return play(_benchmark, case)
