"""What is loaded next, how long it is kept, and for whom it waits: on a clock of the test's own."""

from hypothesis import given, settings
from hypothesis import strategies as drawn

from cloudtune.train.shared_input.stream import AHEAD, GATHER_SECONDS, KEPT, Stream, StreamSeat

SIZE = 100
LATER = 10 * GATHER_SECONDS


def load(stream: Stream, now: float) -> list[int]:
    result = []
    while (at := stream.due(now)[0]) is not None:
        stream.note_begin(at, now)
        stream.note_load(at, SIZE)
        result.append(at)
    return result


def read(stream: Stream, seat: StreamSeat, epoch: int, numbers: range, now: float = LATER) -> None:
    for number in numbers:
        assert stream.ask(seat, epoch, number, now)
        load(stream, now)
        at = stream.give(seat)
        assert at is not None
        assert stream.place(at) == (epoch, number)


def begin_stream(length: int = 100, loaders: int = 1) -> tuple[Stream, StreamSeat]:
    stream, first = Stream(length, loaders), StreamSeat()
    assert stream.ask(first, 1, 0, 0.0)
    return stream, first


def test_it_runs_a_few_ahead_of_who_is_furthest() -> None:
    stream, first = begin_stream()
    assert load(stream, LATER) == list(range(AHEAD + 1))
    assert stream.give(first) == 0
    assert load(stream, LATER) == [AHEAD + 1]
    two, _ = begin_stream(loaders=2)
    assert len(load(two, LATER)) == 2 * AHEAD + 1


def test_it_gathers_first_and_begins_with_those_behind() -> None:
    stream, second = Stream(100), StreamSeat()
    assert stream.ask(StreamSeat(), 3, 40, 0.0)
    assert stream.due(0.0) == (None, GATHER_SECONDS)
    assert stream.ask(second, 3, 38, GATHER_SECONDS / 2)
    assert load(stream, GATHER_SECONDS)[0] == 38


def test_who_comes_far_behind_or_ahead_is_sent_elsewhere() -> None:
    stream, first = begin_stream()
    read(stream, first, 1, range(KEPT + 10))
    assert not stream.ask(StreamSeat(), 1, 0, LATER)
    assert not stream.ask(StreamSeat(), 1, 99, LATER)
    assert not stream.ask(StreamSeat(), 7, 0, LATER), "another epoch, while one is read"
    assert len(stream.sizes) <= KEPT + AHEAD


def test_no_more_memory_is_kept_than_may_be() -> None:
    stream, first = begin_stream(1000)
    for number in range(50):
        assert stream.ask(first, 1, number, LATER)
        while (at := stream.due(LATER)[0]) is not None:
            stream.note_begin(at, LATER)
            stream.note_load(at, 100 * 2**20)
        stream.give(first)
    assert sum(stream.sizes.values()) <= 512 * 2**20


def test_a_slow_trial_is_waited_for_once_an_epoch() -> None:
    stream, quick = begin_stream(1000)
    slow = StreamSeat()
    assert stream.ask(slow, 1, 0, 0.0)
    load(stream, LATER)
    assert stream.give(slow) == 0
    read(stream, quick, 1, range(KEPT))
    assert stream.ask(quick, 1, KEPT, LATER)
    load(stream, LATER)
    assert stream.give(quick) == KEPT
    assert stream.ask(quick, 1, KEPT + 1, LATER)
    due, again = stream.due(LATER)
    assert due is None, "what the slow one needs next would have to go"
    assert again is not None
    assert 0 < again <= 0.1 + 1e-9
    assert load(stream, LATER + again + 1e-6)[0] == KEPT + 1
    assert slow.late
    assert not stream.ask(slow, 1, 0, LATER + 1), "it reads elsewhere"


def test_no_trial_is_given_up_for_a_coming_batch() -> None:
    """What it has asked for would be let go as it comes, and it would wait for ever."""
    stream, quick = begin_stream(1000, loaders=2)
    slow = StreamSeat()
    assert stream.ask(slow, 1, 0, 0.0)
    stream.note_begin(0, LATER)  # by a loader that takes its time
    for number in range(1, KEPT + 20):
        assert stream.ask(quick, 1, number, LATER + number)
        load(stream, LATER + number)
        stream.give(quick)
    assert not slow.late
    stream.note_load(0, SIZE)
    assert stream.give(slow) == 0


def test_who_is_between_epochs_is_waited_for_too() -> None:
    stream, first = begin_stream(40)
    second = StreamSeat()
    assert stream.ask(second, 1, 0, 0.0)
    for number in range(40):
        read(stream, first, 1, range(number, number + 1))
        read(stream, second, 1, range(number, number + 1))
    read(stream, first, 2, range(KEPT - AHEAD))
    assert stream.ask(second, 2, 0, LATER)
    assert stream.give(second) == 40


@settings(max_examples=60, deadline=None)
@given(
    length=drawn.integers(1, 70),
    loaders=drawn.integers(1, 3),
    moves=drawn.lists(drawn.tuples(drawn.integers(0, 3), drawn.integers(0, 2)), max_size=300),
)
def test_promises_come_in_order(length: int, loaders: int, moves: list[tuple[int, int]]) -> None:
    """Readers of any paces, with several loads on their way: none waits for ever."""
    stream, now = Stream(length, loaders), LATER
    seats = [StreamSeat() for _ in range(4)]
    at = [0] * 4  # by what each has read
    on_way: list[int] = []

    def work() -> None:
        nonlocal now
        for _ in range(10_000):
            due, wait = stream.due(now) if len(on_way) < loaders else (None, None)
            if due is not None:
                assert due not in stream.sizes
                stream.note_begin(due, now)
                on_way.append(due)
            elif on_way:
                stream.note_load(on_way.pop(), SIZE)
            elif wait is not None:
                now += wait + 1e-6
            else:
                return
        raise AssertionError("it never comes to rest")

    for who, what in moves:
        seat, (epoch, number) = seats[who], divmod(at[who], length)
        if what == 2:
            stream.leave(seat)
            seats[who] = StreamSeat()
            continue
        if not stream.ask(seat, epoch + 1, number, now):
            continue
        work()
        got = stream.give(seat)
        assert got is not None, "it was promised"
        assert stream.place(got) == (epoch + 1, number)
        at[who] += 1
        assert len(stream.sizes) <= KEPT + 3 * AHEAD + loaders + 1


def test_an_epoch_that_is_broken_off_holds_none_up() -> None:
    stream, first = begin_stream(1000)
    read(stream, first, 1, range(5))
    stream.rest(first)
    read(stream, first, 2, range(5))
    assert stream.place(min(at for at in stream.sizes if at > 100)) == (2, 0)
