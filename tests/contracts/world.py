"""What every world of the pure core promises; inherit it and make one."""

import itertools

from cloudtune.engine.ledger import Entry, MemoryLedger
from cloudtune.engine.loop import World, run
from cloudtune.model.commands import EndRun
from cloudtune.model.events import RunStarted
from cloudtune.model.plans import Rentable
from tests.builders import SUBLINEAR, Setting, offer, play, profile

OTHER = Rentable(
    offer(1, 7.2, name="p.1x", market="spot", interruptions_per_hour=20.0),
    profile({1.0: 3.0}, spread=0.2, name="p.1x", error=0.1),
    2,
)
SETTING = Setting(
    6, 1, 4, 2, profile=profile(SUBLINEAR, spread=0.2), max_instances=2, seed=7, others=(OTHER,)
)


class WorldContract:
    """The suite of a world in which the job SETTING is run."""

    def world(self) -> World:
        """Return a fresh world."""
        raise NotImplementedError

    def entries(self) -> list[Entry]:
        ledger = MemoryLedger()
        run(SETTING.policy(), self.world(), ledger)
        return ledger.entries

    def test_a_run_begins_and_ends(self) -> None:
        entries = self.entries()
        assert isinstance(entries[0].event, RunStarted)
        assert isinstance(entries[-1].commands[-1], EndRun)
        assert sum(isinstance(c, EndRun) for entry in entries for c in entry.commands) == 1

    def test_time_never_runs_backwards(self) -> None:
        times = [entry.event.at for entry in self.entries()]
        assert all(before <= after for before, after in itertools.pairwise(times))

    def test_nothing_happens_after_the_end(self) -> None:
        world = self.world()
        run(SETTING.policy(), world, MemoryLedger())
        assert world.next_event() is None
        assert world.next_event() is None

    def test_the_same_world_again_is_the_same(self) -> None:
        assert self.entries() == self.entries() == list(play(SETTING).entries)
