"""A job on spot and on demand, on pools that come and go."""

from collections.abc import Mapping
from types import MappingProxyType

from cloudtune.engine.spot_pools import PoolTrace
from cloudtune.model.catalog import Offer, pool
from cloudtune.model.commands import PlanAnew
from cloudtune.model.plans import Limits, Rentable
from tests.builders import Played, Setting, offer, play, profile

FOREVER = 1e6


OF_SPOT: Mapping[str, float] = MappingProxyType({})


SPOT = offer(1, 0.6, name="g.1x", market="spot")


DEAR = offer(1, 3.0, name="g.1x")


def rentable(of: Offer, most: int = 1, **more: float) -> Rentable:
    delays = {"launch": 20.0, "boot": 90.0, "start": 10.0, "resize": 10.0, **more}
    return Rentable(of, profile({1.0: 60.0}, name="g.1x", **delays), most)


def job(
    deadline: float, most: int = 1, budget: float = 60.0, on_demand: Mapping[str, float] = OF_SPOT
) -> Setting:
    """Return 48 epochs of a minute on one instance, or two: 50 minutes with boots and starts."""
    spot = rentable(SPOT, most)
    return Setting(
        trials=4,
        min_epochs=6,
        max_epochs=24,
        offer=SPOT,
        profile=spot.profile,
        others=(rentable(DEAR, most, **on_demand),),
        max_instances=most,
        by="sha",
        limits=Limits(deadline, budget),
        heartbeat=False,
    )


def on(setting: Setting, *changes: tuple[float, int]) -> Played:
    """Return the run where the spot pool has room as is said, from each time on."""
    starts, rooms = zip(*changes, strict=True)
    return play(setting.but(pools={pool(SPOT): PoolTrace("made up", starts, rooms, FOREVER)}))


def markets(played: Played) -> list[tuple[float, str]]:
    """Return when each instance came that was launched, and of which market it is."""
    result = [(r.launched_at, r.offer.market) for r in played.policy.fleet if r.launched_at]
    return sorted(result)


def plan_changes(played: Played) -> list[str]:
    changes = (c for said in played.commands for c in said if isinstance(c, PlanAnew))
    return [f"{change.why}: {change.plan}" for change in changes]
