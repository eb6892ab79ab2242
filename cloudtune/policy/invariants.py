"""What is always true of a run's state: checked after every event, except in large simulations."""

from collections import Counter

from cloudtune.model.placement import Room, rooms
from cloudtune.policy.state import RunState

_NONE = 1e-9  # tolerance for sums of GPUs


def check(state: RunState) -> None:
    """Raise AssertionError if the state contradicts itself."""
    alive = Counter(rented.offer for rented in state.fleet.alive())
    assert state.admits(alive), f"{alive.total()} instances at once: {alive}"
    for trial in state.trials.values():
        assert trial.checkpoint_epoch <= trial.epoch, f"{trial.id}: checkpoint from the future"
        assert trial.live == bool(trial.placement), f"{trial.id}: {trial.status} on no GPU"
    _check_live(state)
    assert all(t.status == "waiting" for t in state.again.values())
    _check_rooms(state)


def _check_live(state: RunState) -> None:
    """Raise AssertionError if the counters of live trials differ from the trials themselves."""
    live = state.live
    at_rung = [trial for trial in state.live if trial.status == "at rung"]
    assert {t.id for t in live} == {t.id for t in state.trials.values() if t.live}
    assert live.at_rung == len(at_rung), f"{len(at_rung)} wait at a rung, not {live.at_rung}"
    stopping = [trial.id for trial in live if trial.status == "stopping"]
    assert live.stopping == len(stopping), f"{stopping} are stopping, not {live.stopping}"
    gpus = sum(trial.width for trial in live)
    idle = sum(trial.width for trial in at_rung)
    assert abs(live.gpus - gpus) < _NONE, f"trials have {gpus} GPUs, not {live.gpus}"
    assert abs(live.busy_gpus - (gpus - idle)) < _NONE, f"{gpus - idle} GPUs are busy"


def _check_rooms(state: RunState) -> None:
    """Raise AssertionError if a GPU is overbooked, or counts as free and isn't."""
    kept = state.occupied_slices()
    names = {piece.instance for piece in kept}
    has = {r.instance: r.offer.gpus for r in state.fleet if r.instance in names}
    counted = rooms(has, kept)
    assert counted.keys() == names, f"{names - counted.keys()} were never rented"
    for name, room in counted.items():
        assert not room.overfull(), f"{name} holds more trials than fit: {room.shared}"
    for offer, free in state.free.rooms.items():
        empty = Room(offer.gpus)
        for instance, room in free.items():
            expected = counted.get(instance, empty)
            assert room.matches(expected), f"{instance}: {room.free} GPUs are free"
