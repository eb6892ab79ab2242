"""The best static plan: one fleet from the start to the end. The baseline."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cloudtune.model.plans import Group, Plan, Stage
from cloudtune.planners.arrays import Floats, Indices, Ints
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.dp.labels import DelayColumns
from cloudtune.planners.dp.options import Menu, drop_dominated_offers
from cloudtune.planners.selection import choose_best, with_gap


class StaticPlanner:
    """Exact among fixed fleets of one offer, with the best width for each stage.

    If instances are rented already, the widths are chosen as if none were.
    """

    name = "static"

    def plan(self, request: PlanRequest) -> Plan:
        """Return the best plan that keeps one fleet throughout.

        Raises:
            InfeasibleError: no fixed fleet meets the limits; it has the fastest and the cheapest.
        """
        best = choose_best(request, list(self.every(request)))
        return with_gap(request, best)

    def every(self, request: PlanRequest) -> Iterator[Plan]:
        """Yield the plans that no other fixed fleet beats in both time and money.

        Fastest first. With a fixed fleet the quickest plan is also the cheapest.
        """
        best = _Fixed.of(drop_dominated_offers(request))
        order = np.lexsort((best.dollars, best.seconds))
        lowest = np.inf
        for row in order:
            if request.fleet or best.dollars[row] < lowest:
                lowest = min(lowest, float(best.dollars[row]))
                yield price(request, best.groups(request, int(row)), self.name)


@dataclass(frozen=True)
class _Fixed:
    """Every fixed fleet with the quickest widths on it; times as if nothing were rented.

    `rows[stage]` are rows of the menu, by fleet.
    """

    menu: Menu
    rows: list[Indices]
    seconds: Floats
    dollars: Floats

    @classmethod
    def of(cls, request: PlanRequest) -> "_Fixed":
        menu = Menu.of(request)
        delays = DelayColumns.of(request)
        table = _by_fleet(menu)
        offer = menu.offer[table.max(axis=1, initial=0)]
        count = menu.count[table.max(axis=1, initial=0)]
        arrival = (delays.launch + delays.boot)[offer]
        time = np.where(table >= 0, arrival[:, None], np.inf)
        settled = np.zeros(table.shape, bool)
        back = []
        for number, stage in enumerate(request.work):
            begin = (delays.start if stage.start_epoch == 0 else delays.resize)[offer][:, None]
            waves = np.where(table >= 0, -(-stage.trials // menu.at_once[table]), 1)
            train = np.where(table >= 0, waves * stage.epochs * menu.epoch[table], np.inf)
            move = time.min(axis=1)[:, None] + waves * begin
            stay = np.where(settled & (waves == 1), time, np.inf)
            came_from = np.broadcast_to(np.arange(table.shape[1])[None, :], table.shape)
            if number:
                before = np.broadcast_to(time.argmin(axis=1)[:, None], table.shape)
                came_from = np.where(stay <= move, came_from, before)
            back.append(came_from)
            time = np.minimum(move, stay) + train
            settled = waves == 1
        fleet = (offer, count, delays)
        return cls._with_delays(request, menu, table=table, back=back, time=time, fleet=fleet)

    @classmethod
    def _with_delays(
        cls,
        request: PlanRequest,
        menu: Menu,
        *,
        table: Indices,
        back: list[Indices],
        time: Floats,
        fleet: tuple[Ints, Ints, DelayColumns],
    ) -> "_Fixed":
        offer, count, delays = fleet
        fleets = np.arange(len(table))
        column = time.argmin(axis=1)
        rows = []
        seconds = time[fleets, column] + delays.release[offer]
        for step in reversed(back):
            rows.append(table[fleets, column])
            column = step[fleets, column]
        lived = np.maximum(seconds - delays.launch[offer], delays.minimum[offer])
        dollars = count * (lived * delays.price[offer] + request.charges.usd_per_launch)
        dollars = dollars + seconds * request.charges.usd_per_second
        return cls(menu, rows[::-1], seconds, dollars)

    def groups(self, request: PlanRequest, fleet: int) -> tuple[tuple[Group, ...], ...]:
        return tuple(
            self._group(stage, int(rows[fleet]))
            for stage, rows in zip(request.work, self.rows, strict=True)
        )

    def _group(self, stage: Stage, row: int) -> tuple[Group, ...]:
        menu = self.menu
        offer = menu.request.rentables[menu.offer[row]].offer
        waves = -(-stage.trials // int(menu.at_once[row]))
        group = Group(offer, int(menu.count[row]), float(menu.width[row]), stage.trials, waves)
        return (group,)


def _by_fleet(menu: Menu) -> Indices:
    """Return the rows of the menu by fleet, a column for each width; -1 if there is none."""
    rows: dict[tuple[int, int], list[int]] = {}
    for row, key in enumerate(zip(menu.offer.tolist(), menu.count.tolist(), strict=True)):
        rows.setdefault(key, []).append(row)
    most = max(map(len, rows.values()), default=1)
    padded = [fleet_rows + [-1] * (most - len(fleet_rows)) for fleet_rows in rows.values()]
    return np.array(padded, dtype=np.intp).reshape(len(padded), most)
