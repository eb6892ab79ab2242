"""Sessions of scripts, run here in a thread."""

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import cloudtune
from cloudtune.model.events import EpochReport
from cloudtune.train.session import Session


class Driver:
    """Runs a session's script in a thread and hands its reports over one by one."""

    def __init__(self, **options: Any) -> None:
        self.reports: list[EpochReport] = []
        self._arrived: queue.Queue[EpochReport] = queue.Queue()
        self.session = make_session(self._take, **options)
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def _take(self, report: EpochReport) -> None:
        self.reports.append(report)
        self._arrived.put(report)

    def start(self, function: Callable[[dict[str, Any]], object]) -> None:
        def run() -> None:
            try:
                self.session.run(function, {})
            except BaseException as error:  # noqa: BLE001
                self.error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def next_report(self) -> EpochReport:
        return self._arrived.get(timeout=60)

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()


def make_session(hook: Callable[[EpochReport], object] = lambda _: None, **options: Any) -> Session:
    names = {"trial_id": "t1", "metric_name": "acc", "metric_mode": "max", "max_epoch": 9}
    return Session(report_hook=hook, **{**names, **options})


def run_to_grant(
    function: Callable[[dict[str, Any]], object],
    hear: Callable[[EpochReport], object] = lambda _: None,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[EpochReport]:
    reports: list[EpochReport] = []

    def take(report: EpochReport) -> None:
        reports.append(report)
        hear(report)

    session = make_session(take, **options)
    session.grant(session.max_epoch + 1)
    session.run(function, dict(config or {}))
    return reports


def make_place(**changes: Any) -> dict[str, Any]:
    """Return where a trial trains, by itself and from its begin, but for these changes."""
    metric = {"metric_name": "accuracy", "metric_mode": "max"}
    workers = {"rank": 0, "local_rank": 0, "world_size": 1}
    return {"trial_id": "a", "restore": None, **metric, **workers, **changes}


def steady(config: dict[str, Any]) -> None:
    for epoch in cloudtune.epochs():
        cloudtune.report({"acc": epoch / 10})
