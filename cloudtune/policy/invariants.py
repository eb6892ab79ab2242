"""What is always true of a run's state: checked after every event, but in large simulations."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from cloudtune.placement import Room, rooms

if TYPE_CHECKING:
    from cloudtune.policy.state import RunState


def check(state: RunState) -> None:
    """Raise AssertionError if the state contradicts itself."""
    alive = Counter(rented.offer for rented in state.fleet.alive())
    assert state.admits(alive), f"{alive.total()} instances at once: {alive}"
    for trial in state.trials.values():
        assert trial.checkpoint_epoch <= trial.epoch, f"{trial.id}: checkpoint from the future"
        assert trial.live == bool(trial.placement), f"{trial.id}: {trial.status} on no GPU"
    assert set(state.live) == {t.id for t in state.trials.values() if t.live}
    assert all(t.status == "waiting" for t in state.again.values())
    _check_rooms(state)


def _check_rooms(state: RunState) -> None:
    """Raise AssertionError if a GPU has too much on it, or counts as free and isn't."""
    kept = state.kept()
    names = {piece.instance for piece in kept}
    has = {r.instance: r.offer.gpus for r in state.fleet if r.instance in names}
    found = rooms(has, kept)
    assert found.keys() == names, f"{names - found.keys()} were never rented"
    for name, room in found.items():
        assert not room.overfull(), f"{name} holds more trials than fit: {room.shared}"
    for offer, free in state.free.rooms.items():
        empty = Room(offer.gpus)
        for instance, room in free.items():
            expected = found.get(instance, empty)
            assert room.matches(expected), f"{instance}: {room.free} GPUs are free"
