"""Which physical GPUs workers get: whole ones first, shares as granted, and never too many."""

from hypothesis import given
from hypothesis import strategies as st

from cloudtune.infra.node.gpus import GpuSlots, shares


def test_f12_halves_share_a_gpu() -> None:
    slots = GpuSlots(2)
    asked = [("a", 0), ("b", 0), ("c", 1), ("d", 1)]
    assert [slots.take(name, 0.5, gpu) for name, gpu in asked] == [(0,), (0,), (1,), (1,)]
    assert slots.take("e", 0.5, 1) is None
    slots.give("c")
    assert slots.take("f", 1.0) is None
    assert slots.take("e", 0.5, 1) == (1,)


def test_number_stays_one_gpu() -> None:
    slots = GpuSlots(3)
    slots.take("whole", 1.0)
    assert slots.take("a", 0.5, 7) == (1,)
    slots.give("whole")
    assert slots.take("b", 0.5, 7) == (1,)
    slots.give("a")
    assert slots.take("c", 0.5, 7) == (1,)
    slots.give("b")
    slots.give("c")
    assert slots.take("d", 0.5, 7) == (0,)


def test_share_waits_for_its_gpu() -> None:
    slots = GpuSlots(2)
    slots.take("old", 0.5, 0)
    slots.take("other", 0.5, 0)
    assert slots.take("new", 0.5, 0) is None, "the other GPU is for those that were sent there"
    slots.give("old")
    assert slots.take("new", 0.5, 0) == (0,)


@given(
    st.integers(1, 8),
    st.lists(
        st.tuples(
            st.sampled_from([0.25, 1 / 3, 0.5, 1.0, 2.0, 4.0]), st.integers(-1, 3), st.booleans()
        )
    ),
)
def test_no_gpu_holds_more_than_one_whole(gpus: int, asked: list[tuple[float, int, bool]]) -> None:
    slots, held = GpuSlots(gpus), dict[str, list[tuple[int, float]]]()
    for name, (width, number, first_leaves) in enumerate(asked):
        if first_leaves and held:
            gone = next(iter(held))
            slots.give(gone)
            del held[gone]
        result = slots.take(str(name), width, number)
        if result is not None:
            assert len(set(result)) == len(result) == len(shares(width))
            held[str(name)] = list(zip(result, shares(width), strict=True))
        load = [0.0] * gpus
        for pieces in held.values():
            for gpu, share in pieces:
                load[gpu] += share
        assert max(load) < 1.0 + 1e-5
        assert slots.free() == [gpu for gpu in range(gpus) if load[gpu] < 1e-5]
