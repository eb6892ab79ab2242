"""The worker of a trial, without Ray: what may come before it is set up."""

from __future__ import annotations

from cloudtune.commands import StartTrial
from cloudtune.infra.trainer import Seat, Training, Worker
from cloudtune.infra.trial_session import bundles
from cloudtune.trial import Slice


def test_a_grant_or_an_acknowledgement_may_come_before_the_session() -> None:
    worker = Worker(Training("t.py:f", "loss", "min", 9, "/nowhere", 0), Seat(0, 0, 1, 1))
    worker.acknowledge(3)
    worker.grant(5)
    worker.grant(4)


def test_a_packed_trial_has_one_worker_with_a_share_of_a_gpu() -> None:
    placement = (Slice("i-1", 0.5),)
    start = StartTrial("t00.1", "t00", {}, 0.5, placement, None, 0, 2)
    assert [bundle.gpus for bundle in bundles(start)] == [0.5]
    wide = StartTrial("t00.1", "t00", {}, 3.0, (Slice("i-1", 2.0), Slice("i-2", 1.0)), None, 0, 2)
    assert [bundle.gpus for bundle in bundles(wide)] == [1.0, 1.0, 1.0]
