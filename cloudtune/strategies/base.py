"""What a run asks of a strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.plan import Stage
    from cloudtune.trial import TrialId


class Strategy(Protocol):
    """Decides which trials train on and how far. Pure: same questions, same answers."""

    def stages(self) -> tuple[Stage, ...]:
        """Return the forecast of the work: what each stage trains if nothing fails."""
        ...

    def promote(self, stage: int, results: Mapping[TrialId, float | None]) -> tuple[TrialId, ...]:
        """Return the trials that go on from the rung at the end of a stage, best first.

        `results` holds the metric that each trial reached at the rung; nan and None rank last.
        """
        ...
