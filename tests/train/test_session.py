"""The contract between a user's script and who runs it."""

import contextvars
import itertools
import math
import random
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils import data

import cloudtune
from cloudtune.errors import UsageError
from cloudtune.model.events import EpochReport
from cloudtune.train import calls, torch_state
from cloudtune.train import session as training
from cloudtune.train.checkpoint import Checkpoint
from cloudtune.train.session import MissingMetricError, NeverReportedError, StopTraining
from cloudtune.train.torch_state import CONTEXT_MIB, digest
from cloudtune.train.user_script import load_function
from tests.train.sessions import Driver, make_session, run_to_grant, steady

ROOT = Path(__file__).resolve().parents[2]


def endless(config: dict[str, Any]) -> None:
    for epoch in itertools.count(1):
        cloudtune.report({"acc": epoch / 10})


def test_the_facade() -> None:
    assert all(hasattr(cloudtune, name) for name in cloudtune.__all__)
    assert {"Plan", "Result", "StopTraining"} <= set(cloudtune.__all__)
    assert cloudtune.report is calls.report
    assert cloudtune.Checkpoint is Checkpoint
    assert cloudtune.Experiment.__module__ == "cloudtune.experiment.schema"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cloudtune.nothing
    assert set(cloudtune.__all__) <= set(dir(cloudtune)), "a shell completes them"


def test_no_module_hides_a_name_of_the_facade() -> None:
    """Importing a submodule `cloudtune.report` would put it in place of the function."""
    folder = ROOT / "cloudtune"
    hidden = {path.stem for path in folder.iterdir()} & set(cloudtune.__all__) - {"fused", "models"}
    assert not hidden, f"give cloudtune/{{{', '.join(hidden)}}} another name"


@pytest.mark.parametrize("script", [steady, endless])
def test_a_script_trains_as_far_as_it_is_granted(script: Callable[..., None]) -> None:
    driver = Driver()
    driver.session.grant(2)
    driver.start(script)
    assert [driver.next_report().epoch, driver.next_report().epoch] == [1, 2]
    assert driver.session.epoch == 2

    driver.session.grant(3)
    assert driver.next_report().epoch == 3
    driver.session.grant(1)  # an older word that arrives late takes nothing back
    driver.session.grant(4)
    assert driver.next_report().epoch == 4
    driver.session.stop()
    driver.join()
    assert driver.error is None
    assert [report.epoch for report in driver.reports] == [1, 2, 3, 4]


def test_stop_waits_for_epoch_end() -> None:
    seen: list[str] = []

    def script(config: dict[str, Any]) -> None:
        cloudtune.report({"acc": 0.1})
        session.stop()
        try:
            cloudtune.report({"acc": 0.2})
        except Exception:  # noqa: BLE001
            seen.append("swallowed")
        finally:
            seen.append("unwound")
        seen.append("went on")

    reports: list[EpochReport] = []
    session = make_session(reports.append)
    session.grant(9)
    session.run(script, {})
    assert seen == ["unwound"]
    assert [report.epoch for report in reports] == [1, 2]


def test_a_script_that_never_reports_is_reported_so() -> None:
    with pytest.raises(NeverReportedError, match="trial t1 returned without ever calling"):
        run_to_grant(lambda config: None)
    with pytest.raises(NeverReportedError, match=r"epoch 1 ended without cloudtune\.report"):
        run_to_grant(lambda config: list(cloudtune.epochs()))


def test_waiting_and_setting_up_are_not_training(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(training, "time", clock)

    def script(config: dict[str, Any]) -> None:
        clock.now += 100  # set up
        for _ in cloudtune.epochs():
            clock.now += 2
            cloudtune.report({"acc": 0.5})

    def think(_report: EpochReport) -> None:
        clock.now += 1000

    reports = run_to_grant(script, think, max_epoch=3)
    assert [report.seconds for report in reports] == [2, 2, 2]


def test_metrics_become_floats_and_nan_passes() -> None:
    given: dict[str, Any] = {"acc": torch.tensor(0.5), "loss": math.nan, "steps": 3}
    (report,) = run_to_grant(lambda config: cloudtune.report(given), max_epoch=1)
    assert [type(value) for value in report.metrics.values()] == [float] * 3
    assert report.metrics["acc"] == 0.5
    assert math.isnan(report.metrics["loss"])
    assert report.checkpoint is None
    assert report.in_sync is None


def test_a_missing_metric_is_named() -> None:
    def script(config: dict[str, Any]) -> None:
        cloudtune.report({"loss": 1.0, "acc": 1.0})

    with pytest.raises(MissingMetricError) as caught:
        run_to_grant(script, metric_name="val_accuracy")
    expected = "report() gave {acc, loss}; the experiment's metric is 'val_accuracy'"
    assert str(caught.value) == expected
    run_to_grant(script, metric_name="val_accuracy", rank=1)  # only rank 0's metrics count


@pytest.mark.parametrize("value", ["0.5", None, [1.0], torch.zeros(2)])
def test_what_is_no_number_compares_no_trials(value: Any) -> None:
    message = r"report\(\) gave acc = .*; the experiment's metric is a number"
    with pytest.raises(MissingMetricError, match=message):
        run_to_grant(lambda config: cloudtune.report({"acc": value}), metric_name="acc")


def test_other_metrics_may_be_texts() -> None:
    told = {
        "acc": 0.5,
        "note": "\x1b[1mfine\x1b[0m",
        "each": [0.5, 1],
        "no": None,
        "long": "x" * 999,
    }
    [report] = run_to_grant(lambda config: cloudtune.report(told), metric_name="acc")
    assert report.metrics == {"acc": 0.5}
    texts = dict(report.texts)
    assert texts.pop("long") == f"{'x' * 200}…"
    assert texts == {"note": "fine", "each": "[0.5, 1]"}


@pytest.mark.parametrize("given", [{}, {"weights": 1}, "folder"])
def test_files_of_a_checkpoint_are_in_a_folder(given: Any) -> None:
    with pytest.raises(UsageError, match=r"Checkpoint\.from_directory\(folder\), not a (dict|str)"):
        run_to_grant(lambda config: cloudtune.report({"acc": 1.0}, given))


def test_hooks_come_before_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "paced_machine.py").write_text(
        "calls = []\ndef factory():\n    return lambda **words: calls.append(words)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CLOUDTUNE_EPOCH_HOOK", "paced_machine:factory")
    calls: list[dict[str, Any]] = __import__("paced_machine").calls

    counts: list[int] = []
    run_to_grant(steady, lambda _: counts.append(len(calls)), max_epoch=2, nodes=2)
    assert counts == [2, 3]
    assert [call.pop("elapsed") >= 0 for call in calls] == [True, True, True]
    assert [call["epoch"] for call in calls] == [0, 1, 2], "epoch 0 is the set-up"
    assert calls[2] == {"trial": "t1", "epoch": 2, "width": 1.0, "nodes": 2}


def draws(trial: str, seed: int, rank: int = 0) -> tuple[float, float]:
    with make_session(trial_id=trial, seed=seed, rank=rank).activate():
        return random.random(), torch.rand(1).item()


def test_seeds_follow_from_the_seed_and_the_trial() -> None:
    assert draws("a", 0) == draws("a", 0) == draws("a", 0, rank=1)
    assert len({draws("a", 0), draws("a", 1), draws("b", 0)}) == 3


def list_numbers(loader: data.DataLoader[Any]) -> list[list[int]]:
    return [batch[0].tolist() for batch in loader]


def make_loader(**options: Any) -> data.DataLoader[Any]:
    return data.DataLoader(data.TensorDataset(torch.arange(24)), **options)


def passes(rank: int, world: int, first_epoch: int = 1, **options: Any) -> list[list[list[int]]]:
    """Give the batches of two epochs as one rank sees them."""
    session = make_session(rank=rank, world_size=world, start_epoch=first_epoch - 1)
    with session.activate():
        loader = cloudtune.prepare_data_loader(make_loader(**options))
        first = list_numbers(loader)
        session.epoch += 1
        return [first, list_numbers(loader)]


def test_ranks_share_each_batch() -> None:
    alone = passes(0, 1, batch_size=6, shuffle=True)
    shares = [passes(rank, 2, batch_size=6, shuffle=True) for rank in (0, 1)]
    for epoch in (0, 1):
        together = [left + right for left, right in zip(*(s[epoch] for s in shares), strict=True)]
        assert [sorted(batch) for batch in together] == [sorted(batch) for batch in alone[epoch]]
    assert alone[0] != alone[1], "each epoch has its own order"
    assert sorted(itertools.chain(*alone[0])) == list(range(24))


def test_a_restored_trial_sees_the_order_of_its_epoch() -> None:
    first, second = passes(0, 1, batch_size=6, shuffle=True)
    assert passes(0, 1, first_epoch=2, batch_size=6, shuffle=True)[0] == second != first


def test_a_loader_of_the_users_own_making() -> None:
    weights = data.WeightedRandomSampler([1.0] * 24, 24)
    with make_session().activate():
        loader = cloudtune.prepare_data_loader(make_loader(batch_size=6, sampler=weights))
        assert loader.sampler is weights
        assert len(loader) == 4
    with (
        make_session(world_size=2).activate(),
        pytest.raises(UsageError, match="can't split a loader with a WeightedRandomSampler"),
    ):
        cloudtune.prepare_data_loader(make_loader(batch_size=6, sampler=weights))


def test_batches_of_any_shape_move_to_the_device() -> None:
    samples = [{"x": torch.ones(2), "pair": (torch.ones(1), "text")}] * 4
    with make_session(device="meta").activate():
        loader = cloudtune.prepare_data_loader(data.DataLoader(samples, batch_size=2))  # type: ignore[arg-type]
        batch = next(iter(loader))
    assert batch["x"].device.type == batch["pair"][0].device.type == "meta"
    assert batch["pair"][1] == ("text", "text")


def test_sums_of_a_gpu_tell_parameters_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_state, "_CHUNK", 4)
    data = torch.arange(1, 80, dtype=torch.uint8)
    other, swapped = data.clone(), data.clone()
    other[-1] ^= 1
    swapped[[0, 4]] = swapped[[4, 0]]

    def sums(given: torch.Tensor) -> list[list[int]]:
        return [_sum.tolist() for _sum in torch_state._sums(given)]

    assert len(sums(data)) == 5
    assert sums(data) == sums(data.clone())
    assert sums(data)[:-1] == sums(other)[:-1]
    assert sums(data)[-1] != sums(other)[-1]
    assert sums(data)[0][0] == sums(swapped)[0][0], "the sum alone doesn't see it"
    assert sums(data)[0] != sums(swapped)[0]
    even = data[:76]
    assert sums(torch.cat([data[:2], even])[2:]) == sums(even), "wherever it lies"
    assert sums(torch.zeros(0, dtype=torch.uint8)) == [[0, 0]]


def test_a_report_tells_the_most_memory_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [report.memory_mib for report in run_to_grant(steady, max_epoch=1)] == [None]
    asked: list[str] = []

    def reserved(device: str) -> int:
        asked.append(device)
        return 3 * 2**20

    monkeypatch.setattr("torch.cuda.max_memory_reserved", reserved)
    result = run_to_grant(steady, max_epoch=1, device="cuda:0")
    assert [report.memory_mib for report in result] == [3 + CONTEXT_MIB]
    assert asked == ["cuda:0"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_model_and_batches_meet_on_the_gpu() -> None:
    with make_session(device="cuda:0").activate():
        model = cloudtune.prepare_model(torch.nn.Linear(1, 1))
        loader = cloudtune.prepare_data_loader(
            data.DataLoader(data.TensorDataset(torch.ones(8, 1)), batch_size=4, pin_memory=True)
        )
        outputs = [model(batch) for (batch,) in loader]
    assert {output.device for output in outputs} == {torch.device("cuda:0")}


def test_a_thread_keeps_its_session_while_another_begins() -> None:
    """A stopped trial that still trains must not report into the next one."""
    old, new = Driver(trial_id="old"), Driver(trial_id="new")
    old.start(steady)
    new.start(steady)
    assert old.next_report().epoch == new.next_report().epoch == 1
    old.session.grant(2)
    assert old.next_report().epoch == 2
    assert len(new.reports) == 1
    for driver in (old, new):
        driver.session.stop()
        driver.join()


def test_it_prints(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def script() -> None:
        assert cloudtune.get_checkpoint() is None
        assert cloudtune.get_context().get_world_size() == 1
        steady({})

    contextvars.Context().run(script)
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split("  (")[0] for line in lines]
    assert shown == ["epoch 1  acc 0.1", "epoch 2  acc 0.2", "epoch 3  acc 0.3"]
    monkeypatch.setenv("CLOUDTUNE_EPOCHS", "1")
    with pytest.raises(StopTraining):  # a SystemExit: the script ends quietly
        contextvars.Context().run(endless, {})
    assert len(capsys.readouterr().out.splitlines()) == 1
    monkeypatch.setenv("CLOUDTUNE_EPOCHS", "many")
    with pytest.raises(UsageError, match="CLOUDTUNE_EPOCHS is 'many'"):
        contextvars.Context().run(steady, {})


def test_a_function_sees_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour_of_it.py").write_text("ANSWER = 42\n")
    (tmp_path / "tuned.py").write_text(
        textwrap.dedent("""\
            from dataclasses import dataclass
            from neighbour_of_it import ANSWER

            @dataclass
            class Settings:
                answer: int = ANSWER

            def train(config):
                return Settings().answer
            """)
    )
    assert load_function(tmp_path, "tuned.py:train")({}) == 42
    assert sys.path[0] == str(tmp_path)
    assert sys.modules["tuned"].ANSWER == 42, "processes that it spawns import it by its name"


def test_a_script_is_reported_that_its_machine_is_leaving() -> None:
    session = make_session()
    with session.activate():
        assert not cloudtune.is_leaving()
        session.leaving = True
        assert cloudtune.is_leaving()


def test_an_epoch_reports_how_long_it_waited_for_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = itertools.count(10.0, 0.25)
    monkeypatch.setattr(training, "waited_seconds", lambda: next(waits))
    result = run_to_grant(steady, max_epoch=2)
    assert [report.waited for report in result] == [0.25, 0.25]


def test_uncounted_none_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert training.waited_seconds() >= 0.0
    for text in ("", "1", "1 x 2"):
        (tmp_path / "schedstat").write_text(text)
        monkeypatch.setattr(training, "_SCHEDSTAT", tmp_path / "schedstat")
        assert training.waited_seconds() == 0.0
    (tmp_path / "schedstat").write_text("7 1500000000 9\n")
    assert training.waited_seconds() == 1.5


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tuned.py", "names no function; write it as train.py:train"),
        ("other.py:train", "there is no Python file"),
        ("tuned.py:run", "has no function 'run'"),
        ("tuned.py:VALUE", "has no function 'VALUE'"),
    ],
)
def test_a_function_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, message: str
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "tuned.py").write_text("VALUE = 1\ndef train(config): ...\n")
    with pytest.raises(UsageError, match=message):
        load_function(tmp_path, spec)


def test_the_digest_tells_parameters_apart() -> None:
    model = torch.nn.Linear(2, 2).to(torch.bfloat16)
    before = digest(model.parameters())
    assert digest(model.parameters()) == before
    with torch.no_grad():
        model.bias[1] += 1
    assert digest(model.parameters()) != before
