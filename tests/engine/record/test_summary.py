"""The outcome of a run in a line, from its ledger alone."""

import pytest

from cloudtune.engine.ledger import Entry
from cloudtune.engine.record.summary import Summary, Target
from cloudtune.engine.record.timeline import read
from cloudtune.model.commands import StartTrial, StopTrial
from cloudtune.model.events import RunStarted, TrialStopped
from cloudtune.model.trial import Mode
from tests.builders import epoch

# The last one is the best of all and the worst, until it diverges.
CURVES = {"a": [0.1, 0.7, 0.2], "b": [0.5], "c": [0.07, 0.705, 0.3, 0.4, 0.5, float("nan")]}


def entries(curves: dict[str, list[float]]) -> list[Entry]:
    starts = tuple(StartTrial(f"{name}.1", name, {}, 1, (), None, 0, 9) for name in curves)
    result = [
        Entry(epoch(float(number), f"{name}.1", number, value), ())
        for name, values in curves.items()
        for number, value in enumerate(values, start=1)
    ]
    return [Entry(RunStarted(0.0), starts), *result]


def summary(mode: Mode, curves: dict[str, list[float]]) -> Summary:
    return Summary.of(read(entries(curves)), "score", mode)


@pytest.mark.parametrize(("mode", "best"), [("max", (0.7, "a", 2)), ("min", (0.1, "a", 1))])
def test_h17_h21_the_best_epoch_of_all_is_found(mode: Mode, best: tuple[float, str, int]) -> None:
    result = summary(mode, CURVES)
    assert (result.best, result.best_trial, result.best_epoch) == best
    assert (result.trials, result.epochs) == (3, 10)
    assert (result.shortest, result.median, result.longest) == (1, 3, 6)


def test_h21_a_summary_is_a_sentence() -> None:
    result = "3 trials, 10 epochs in all: 1 to 6 each, the median 3"
    assert summary("max", CURVES).sentence() == result


@pytest.mark.parametrize(
    ("mode", "value", "message"),
    [
        ("max", 0.65, "Target score 0.65: reached after 2s by a in epoch 2"),
        ("max", 0.7, "Target score 0.7: reached after 2s by a in epoch 2"),
        ("max", 0.71, "Target score 0.71: not reached (the best was 0.7)"),
        ("min", 0.1, "Target score 0.1: reached after 1s by a in epoch 1"),
        ("min", 0.05, "Target score 0.05: not reached (the best was 0.1)"),
    ],
)
def test_f16_when_a_target_was_reached_and_by_whom(mode: Mode, value: float, message: str) -> None:
    result = Target.of(read(entries(CURVES)), "score", mode, value)
    assert result.text("score") == message
    assert (result.reached_at is None) == ("not reached" in message)


def test_a_job_without_a_result_has_a_summary_too() -> None:
    result = summary("max", {})
    assert result == Summary(None, "", 0, 0, 0, 0, 0, 0)
    assert Target.of(read(entries({})), "score", "max", 0.5).text("score").endswith("not reached")


def test_an_epoch_trained_again_counts_as_it_ended_last() -> None:
    again = StartTrial("b.2", "b", {}, 1, (), None, 0, 9)
    late = [
        Entry(TrialStopped(10.0, "b.1"), (again,)),
        Entry(epoch(11.0, "b.2", 1, 0.9), (StopTrial("b.2"),)),
        Entry(epoch(12.0, "b.2", 2, 0.99), ()),  # not waited for
    ]
    result = Summary.of(read([*entries(CURVES), *late]), "score", "max")
    assert (result.best, result.best_trial, result.best_epoch) == (0.9, "b", 1)
    assert (result.trials, result.epochs) == (3, 10)
