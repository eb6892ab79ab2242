"""Jobs of all shapes, and all ways to run them, for tests by hypothesis."""

from typing import get_args

from hypothesis import assume
from hypothesis import strategies as st

from cloudtune.model import events
from cloudtune.model.placement import slots
from cloudtune.model.plans import Charges, Group, Rentable
from tests.builders.machines import offer, profile
from tests.builders.plans import group
from tests.builders.runs import Setting


@st.composite
def jobs(
    draw: st.DrawFn,
    *,
    max_epochs: int,
    epoch: st.SearchStrategy[float],
    release: st.SearchStrategy[float],
    spread: st.SearchStrategy[float] = st.just(0.0),  # noqa: B008  a description, drawn from later
) -> Setting:
    """Give jobs of all shapes that a small fleet can have, on one offer or two.

    Delays are of up to half a minute.
    """
    first, deviation = draw(st.integers(1, 3)), draw(spread)
    charges = st.builds(Charges, st.sampled_from([0.0, 0.25]), st.sampled_from([0.0, 0.002]))
    other = st.none() | rentables("p.2x", epoch=epoch, release=release, spread=deviation)
    rented = draw(rentables("g.4x", epoch=epoch, release=release, spread=deviation))
    second = draw(other)
    return Setting(
        trials=draw(st.integers(1, 20)),
        min_epochs=first,
        max_epochs=draw(st.integers(first, max_epochs)),
        eta=draw(st.integers(2, 4)),
        offer=rented.offer,
        profile=rented.profile,
        max_instances=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 1000)),
        others=() if second is None else (second,),
        charges=draw(charges),
        mix=draw(st.integers(1, 2)),
    )


@st.composite
def rentables(
    draw: st.DrawFn,
    name: str,
    *,
    epoch: st.SearchStrategy[float],
    release: st.SearchStrategy[float],
    spread: float,
) -> Rentable:
    """Give offers of one instance type, and how a script scales on it."""
    widths = draw(st.sets(st.sampled_from([1 / 3, 0.5, 1.0, 2.0, 4.0, 8.0]), min_size=1))
    gpus, dollars = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([12.0, 36.0, 90.0]))
    delays = st.floats(0.0, 30.0)
    made = profile(
        {width: draw(epoch) for width in sorted(widths)},
        launch=draw(delays),
        boot=draw(delays),
        start=draw(delays),
        resize=draw(delays),
        release=draw(release),
        spread=spread,
        name=name,
    )
    minimum = draw(st.sampled_from([0.0, 60.0]))
    return Rentable(offer(gpus, dollars, minimum, name=name), made, draw(st.integers(1, 4)))


@st.composite
def choices(draw: st.DrawFn, setting: Setting) -> tuple[tuple[Group, ...], ...]:
    """Give any way to run a job, stage by stage: good ones, and bad ones."""
    return tuple(draw(stage_choices(setting, stage.trials)) for stage in setting.strategy.stages())


@st.composite
def stage_choices(draw: st.DrawFn, setting: Setting, trials: int) -> tuple[Group, ...]:
    room, left, groups = setting.max_instances, trials, []
    for rentable in draw(st.permutations(setting.rentables)):
        sizes = range(1, min(room, rentable.most) + 1)
        shapes = [
            (size, width)
            for size in sizes
            for width in rentable.profile.widths
            if slots(width, rentable.gpus, size) > 0
        ]
        if shapes and left:
            size, width = draw(st.sampled_from(shapes))
            count = draw(st.integers(1, left))
            groups.append(group(rentable.offer, size, width, count))
            room, left = room - size, left - count
    assume(groups)  # no width fits on so few instances
    first = groups[0]
    return (group(first.offer, first.instances, first.width, first.trials + left), *groups[1:])


def troubles(
    at: st.SearchStrategy[float], *, trials: int = 10, interrupted: bool = True
) -> st.SearchStrategy[events.Event]:
    """Return things that go wrong; those that can't happen when their time comes don't.

    Launches are refused early as well: most are asked for at the begin.
    """
    intent = st.integers(0, 7).map("i{:03d}".format)
    session = st.builds("t{:02d}.{}".format, st.integers(0, trials - 1), st.integers(1, 4))
    word, kind = st.just("trouble"), st.sampled_from(get_args(events.RefusalKind))
    early = at | at.map(lambda time: time / 10)
    person = [st.builds(events.Interrupted, at)] if interrupted else []
    return st.one_of(
        st.builds(lambda at, intent: events.InstanceGone(at, intent, at, "gone"), at, intent),
        st.builds(events.NodeLost, at, intent, word),
        st.builds(events.LaunchFailed, early, intent, word, word, st.booleans(), kind),
        st.builds(events.TrialFailed, at, session, word, word),
        st.builds(events.TrialLost, at, session, word),
        *person,
    )
