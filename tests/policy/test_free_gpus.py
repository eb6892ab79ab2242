"""Which GPUs are free, as instances come and go and trials sit and move."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.infra.node.gpus import GpuSlots
from cloudtune.model.catalog import Offer
from cloudtune.model.placement import rooms
from cloudtune.model.trial import Slice
from cloudtune.policy.free_gpus import FreeGpus
from tests.builders import offer

FOUR = offer(4)
ONE = offer(1, name="s.1x")


def free_gpus(**usable: int) -> FreeGpus:
    result = FreeGpus()
    result.follow({name: FOUR if gpus == 4 else ONE for name, gpus in usable.items()}, ())
    return result


def test_only_offers_that_have_the_width_are_looked_at() -> None:
    result = FreeGpus({FOUR: {2.0}, ONE: {1.0}})
    result.follow({"a": FOUR, "b": ONE}, ())
    assert result.find(1.0) == (ONE, (Slice("b", 1.0),))
    assert result.find(4.0) is None


def test_the_first_offer_is_preferred_and_the_others_will_do() -> None:
    result = free_gpus(a=4, b=1)
    assert result.find(1.0, ONE) == (ONE, (Slice("b", 1.0),))
    result.take([Slice("b", 1.0)])
    assert result.find(1.0, ONE) == (FOUR, (Slice("a", 1.0),))


def test_a_growing_share_alone_on_a_gpu_stays_there() -> None:
    """Another GPU would do as well, but there is none while it still sits on its own."""
    result = free_gpus(a=4)
    own = (Slice("a", 0.25, 2),)
    result.take((*own, Slice("a", 3.0)))
    placement = result.move(0.5, FOUR, own)
    assert placement is not None
    assert placement[1] == (Slice("a", 0.25, 2),)


class Machines:
    """Physical GPUs, by the agents' own rule, next to the free GPUs that a policy counts."""

    def __init__(self, *offers: Offer) -> None:
        self.free = FreeGpus()
        usable = {f"i{n}": item for n, item in enumerate(offers)}
        self.free.follow(usable, ())
        self.agents = {name: GpuSlots(item.gpus) for name, item in usable.items()}
        self.held: dict[int, tuple[Slice, ...]] = {}
        self.reserved: dict[int, tuple[float, Offer, tuple[Slice, ...]]] = {}
        self.session = 0

    def start(self, width: float, first: Offer | None = None) -> bool:
        """Place a trial, if the policy finds room for it: then the agents have room."""
        placement = self.free.find(width, first)
        if placement is None:
            return False
        self.free.take(placement[1])
        self.session += 1
        self.held[self.session] = placement[1]
        for piece in placement[1]:
            taken = self.agents[piece.instance].take(str(self.session), piece.gpus, piece.gpu)
            assert taken is not None, f"{piece} can't sit on {piece.instance}"
        return True

    def leave(self, session: int) -> None:
        """End a session; one that was to move goes on where it was sent."""
        pieces = self.held.pop(session)
        self.free.give(pieces)
        for piece in pieces:
            self.agents[piece.instance].give(str(session))
        if session in self.reserved:
            width, first, reserved = self.reserved.pop(session)
            self.free.give(reserved)
            assert self.start(width, first), "what was kept for it"

    def move(self, session: int, width: float) -> None:
        pieces = self.held[session]
        if session in self.reserved:
            return
        result = self.free.move(width, self.free.offers[pieces[0].instance], pieces)
        if result is not None:
            self.reserved[session] = (width, result[0][0], result[1])

    def check(self) -> None:
        """The count has what is held and reserved, and no GPU of them holds more than fits."""
        kept = [piece for _, _, pieces in self.reserved.values() for piece in pieces]
        taken = [piece for pieces in self.held.values() for piece in pieces]
        has = {name: offer.gpus for name, offer in self.free.offers.items()}
        for name, room in rooms(has, [*taken, *kept]).items():
            assert not room.overfull()
            assert room.matches(self.free.rooms[self.free.offers[name]][name])


WIDTHS = st.sampled_from([0.25, 1 / 3, 0.5, 2 / 3, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0])
STEPS = st.tuples(st.sampled_from(["start", "start", "leave", "move"]), WIDTHS, st.integers(0, 9))


@settings(max_examples=100)
@given(st.lists(st.sampled_from([FOUR, ONE]), min_size=1, max_size=4), st.lists(STEPS, max_size=40))
def test_whatever_moves_the_count_is_what_gpus_can_hold(
    offers: list[Offer], steps: list[tuple[str, float, int]]
) -> None:
    machines = Machines(*offers)
    for what, width, which in steps:
        if what == "start":
            machines.start(width)
        elif machines.held:
            session = sorted(machines.held)[which % len(machines.held)]
            if what == "leave":
                machines.leave(session)
            else:
                machines.move(session, width)
        machines.check()
    while machines.held:
        machines.leave(min(machines.held))
    assert all(len(a.free()) == machines.free.offers[n].gpus for n, a in machines.agents.items())
    assert machines.free.free_gpus == machines.free.gpus
