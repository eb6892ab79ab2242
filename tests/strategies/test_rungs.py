"""What strategies with rungs share, held against the plain way to work it out."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cloudtune.model.progress import OVER, TrialProgress
from cloudtune.model.trial import Trial, TrialId, rank_key
from cloudtune.strategies.base import Task
from cloudtune.strategies.rungs import NewTrials, Standing, cap_epoch
from tests.builders import Given

# Few values, so that many are equal; what is over is so for good.
RESULTS = st.tuples(st.integers(0, 7), st.sampled_from([-1.0, 0.0, 0.5, 0.5, 2.0]))
CHANGES = st.tuples(
    st.integers(0, 7), st.sampled_from(["forgotten", "finished", "cut", "further", "rewound"])
)


@given(steps=st.lists(RESULTS | CHANGES, max_size=80))
def test_those_ahead_are_those_a_sort_puts_first(steps: list[tuple[int, float | str]]) -> None:
    trials = {f"t{n}": TrialProgress(Trial(f"t{n}", {}), status="parked") for n in range(8)}
    standing, best = Standing(), dict[str, float]()
    for number, change in steps:
        name, trial = f"t{number}", trials[f"t{number}"]
        if isinstance(change, float):
            best[name] = max(change, best.get(name, change))
            standing.note(name, change)
        elif change == "forgotten":
            best.pop(name, None)
            standing.forget(name)
        elif change in {"finished", "cut"}:
            trial.status = "finished" if change == "finished" else "cut"
        else:
            trial.epoch = trial.epoch + 1 if change == "further" else 0
        ahead = sorted(
            (n for n in best if trials[n].status not in OVER),
            key=lambda n: (rank_key("max", best[n]), -trials[n].epoch, n),
        )
        assert next(standing.rank(trials), None) == next(iter(ahead), None)
        assert list(standing.rank(trials)) == ahead
        assert len(standing) == len(best)
        assert [n in standing for n in trials] == [n in best for n in trials]
        assert all(standing.best(n) == value for n, value in best.items())


class PlainTrials:
    """`NewTrials`, looked through from the begin each time."""

    def __init__(self, left: list[Trial]) -> None:
        self._left, self._waiting = left, list[Trial]()

    def peek(self, begun: dict[TrialId, None], count: int) -> list[Trial]:
        self._waiting = [trial for trial in self._waiting if trial.id not in begun]
        while len(self._waiting) < count and self._left:
            self._waiting.append(self._left.pop(0))
        return self._waiting[: max(0, count)]


@given(
    steps=st.lists(
        st.tuples(st.integers(-1, 6), st.sampled_from([1, 4]), st.sets(st.integers(0, 5))),
        max_size=25,
    )
)
def test_trials_are_asked_for_until_they_begin(steps: list[tuple[int, int, set[int]]]) -> None:
    given_ones = [Trial(f"t{number}", {}, epochs=1 + number % 5) for number in range(30)]
    new, plain = NewTrials(Given(given_ones)), PlainTrials([*given_ones])
    view: Any = SimpleNamespace(trials=dict[str, None]())
    for count, until, begin in steps:
        wanted = plain.peek(view.trials, count)
        assert new.peek(view, count) == wanted
        tasks = new.tasks(view, count, until)
        assert tasks == tuple(Task(trial, cap_epoch(trial, until)) for trial in wanted)
        view.trials.update({wanted[n].id: None for n in sorted(begin) if n < len(wanted)})
        assert new.dry(view) == (not plain.peek(view.trials, 1))
