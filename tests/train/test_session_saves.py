"""What a session saves, and what it begins from."""

import math
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cloudtune
from cloudtune.model.events import EpochReport
from cloudtune.train.checkpoint import Checkpoint, CheckpointStore, read_manifest
from cloudtune.train.save_times import SaveTimes, interval
from tests.builders.values import present
from tests.train.sessions import Driver, make_session, run_to_grant, steady


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with the files that a script saves."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "steps").write_text("1")
    return folder


def saving(folder: Path) -> Callable[[dict[str, Any]], None]:
    def train(config: dict[str, Any]) -> None:
        for epoch in cloudtune.epochs():
            (folder / "epoch.txt").write_text(str(epoch))
            cloudtune.report({"acc": 1 / epoch}, cloudtune.Checkpoint.from_directory(folder))

    return train


def test_a_trial_goes_on_from_its_checkpoint(store: CheckpointStore, work: Path) -> None:
    first = run_to_grant(saving(work), store=store, max_epoch=4)
    path = present(first[-1].checkpoint)
    assert path == store.latest("t1")
    assert read_manifest(path).metrics == {"acc": 0.25}
    seen: list[str] = []

    def resumed(config: dict[str, Any]) -> None:
        checkpoint = present(cloudtune.get_checkpoint())
        assert checkpoint.epoch == 4
        with checkpoint.as_directory() as folder:
            seen.append((Path(folder) / "epoch.txt").read_text())
        steady(config)

    second = run_to_grant(resumed, store=store, restore=path, max_epoch=6)
    assert seen == ["4"]
    assert [report.epoch for report in second] == [5, 6]


def test_the_last_two_are_kept(tmp_path: Path, store: CheckpointStore, work: Path) -> None:
    """The controller may not hear of a checkpoint whose node is lost as it is saved."""
    known: list[str | None] = []

    def deliver(report: EpochReport) -> None:
        for path in [*known[-1:], report.checkpoint]:
            read_manifest(
                present(path)
            )  # the last that was known is still there, as is the new one
        known.append(report.checkpoint)

    run_to_grant(saving(work), deliver, store=store, max_epoch=5)
    kept = sorted(path.name for path in (tmp_path / "store" / "t1").iterdir())
    assert kept == ["epoch-00001", "epoch-00004", "epoch-00005"]  # best, last known, latest


def test_what_may_be_needed_is_kept(tmp_path: Path, store: CheckpointStore, work: Path) -> None:
    """It may have asked the trial to stop at epoch 2: until that arrives, the trial trains on."""

    def deliver(report: EpochReport) -> None:
        if report.epoch <= 2 or report.epoch == 6:
            session.acknowledge(report.epoch)

    session = make_session(deliver, store=store, max_epoch=8, acknowledged=0)
    session.grant(9)
    session.run(saving(work), {})
    kept = sorted(int(path.name[-5:]) for path in (tmp_path / "store" / "t1").iterdir())
    assert kept == [1, 6, 7, 8]  # the best, and all since the last that is known
    assert session.acknowledged == 6


class SlowStore(CheckpointStore):
    """Brings checkpoints into the storage on demand."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.may_commit = threading.Event()
        self.error: Exception | None = None

    def commit(self, *arguments: Any) -> str | None:
        assert self.may_commit.wait(60)
        if self.error is not None:
            raise self.error
        return super().commit(*arguments)


def test_training_continues_during_upload(tmp_path: Path, work: Path) -> None:
    store = SlowStore(str(tmp_path / "store"))
    driver, began = Driver(store=store), queue.Queue[int]()

    def script(config: dict[str, Any]) -> None:
        for epoch in cloudtune.epochs():
            began.put(epoch)
            (work / "epoch.txt").write_text(str(epoch))
            cloudtune.report({"acc": 0.5}, cloudtune.Checkpoint.from_directory(work))
            (work / "epoch.txt").write_text("written over")

    driver.session.grant(3)
    driver.start(script)
    assert [began.get(timeout=60), began.get(timeout=60)] == [1, 2]
    assert driver.reports == [], "no trial may go on from a checkpoint that isn't there yet"
    store.may_commit.set()
    for epoch in (1, 2, 3):
        report = driver.next_report()
        assert report.epoch == epoch
        assert 0.0 < report.saving <= report.seconds
        with Checkpoint(str(report.checkpoint), epoch).as_directory() as saved:
            assert (Path(saved) / "epoch.txt").read_text() == str(epoch)
    driver.session.stop()
    driver.join()


def saved_late(folder: Path, work: Path, granted: int, error: Exception | None = None) -> Driver:
    """Return a driver that has begun, of a script whose first checkpoint is on its way."""
    store = SlowStore(str(folder / "store"))
    store.error = error
    driver = Driver(store=store)
    driver.session.grant(granted)
    driver.start(saving(work))
    if error is None:
        driver.session.stop()
    store.may_commit.set()
    driver.join()
    return driver


def test_who_is_stopped_brings_its_checkpoint_home_first(tmp_path: Path, work: Path) -> None:
    driver = saved_late(tmp_path, work, 1)
    driver.session.flush()
    latest = CheckpointStore(str(tmp_path / "store")).latest("t1")
    assert [report.checkpoint for report in driver.reports] == [latest]


@pytest.mark.parametrize("granted", [1, 2], ids=["while it waits", "while it trains"])
def test_a_storage_that_refuses_ends_the_script(tmp_path: Path, work: Path, granted: int) -> None:
    error = OSError("the bucket is gone")
    driver = saved_late(tmp_path, work, granted, error)
    assert driver.error is error
    assert driver.reports == []


def test_only_rank_0_saves_and_delivers(store: CheckpointStore, work: Path) -> None:
    assert run_to_grant(saving(work), store=store, rank=1, world_size=2) == []
    assert store.latest("t1") is None


def alter(checkpoint: Path) -> None:
    (file,) = checkpoint.glob("*/steps")
    file.write_text("y")


@pytest.mark.parametrize("damage", [shutil.rmtree, alter])
def test_a_trial_with_a_damaged_checkpoint_resumes_earlier(
    store: CheckpointStore, work: Path, damage: Callable[[Path], None]
) -> None:
    paths = [store.save("t1", epoch, {"acc": 0.5}, work) for epoch in (1, 2)]
    began: list[tuple[int, str]] = []

    def train(config: dict[str, Any]) -> None:
        for number in cloudtune.epochs():
            text = ""
            if checkpoint := cloudtune.get_checkpoint():
                with checkpoint.as_directory() as folder:
                    text = Path(folder, "steps").read_text()
            began.append((number, text))
            cloudtune.report({"acc": 0.5})

    damage(Path(paths[1]))
    run_to_grant(train, store=store, restore=paths[1], start_epoch=2, max_epoch=3)
    assert began == [(2, "1"), (3, "1")]
    damage(Path(paths[0]))
    began.clear()
    run_to_grant(train, store=store, restore=paths[1], start_epoch=2, max_epoch=3)
    assert began == [(1, ""), (2, ""), (3, "")]


def counting(kept: list[bool]) -> Callable[[dict[str, Any]], None]:
    """Return a script that counts steps and saves in mid-epoch, and goes on from there."""

    def train(config: dict[str, Any]) -> None:
        steps = 0
        checkpoint = cloudtune.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                steps = int(Path(folder, "steps").read_text())
        for _ in cloudtune.epochs():
            steps += 1
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "steps").write_text(str(steps))
                kept.append(cloudtune.save(Checkpoint.from_directory(folder)))
                steps += 9
                Path(folder, "steps").write_text(str(steps))
                cloudtune.report({"acc": float(steps)}, Checkpoint.from_directory(folder))

    return train


def test_epoch_resumes_from_its_middle(tmp_path: Path) -> None:
    kept: list[bool] = []
    store = CheckpointStore(str(tmp_path))
    session = make_session(store=store)
    session.grant(2)
    thread = threading.Thread(target=session.run, args=(counting(kept), {}))
    thread.start()
    while len(kept) < 2 or session.epoch < 2:
        assert thread.is_alive()
        session.flush()
    session.stop()
    thread.join()
    assert kept == [False, True], "before the first epoch nothing would look for it"

    middle = tmp_path / "middle"
    middle.mkdir()
    (middle / "steps").write_text("21")
    path = present(store.latest("t1"))
    again = make_session(store=store, restore=path, max_epoch=3)
    with again.activate():
        assert again.save(Checkpoint.from_directory(middle)), "of a restored one, too"
    reports = run_to_grant(counting(kept), store=store, restore=path, max_epoch=3)
    assert [report.metrics["acc"] for report in reports] == [31.0], "21 steps, and an epoch's 10"
    assert read_manifest(path).metrics == {"acc": 20.0}, "the metrics are the last epoch's"


def test_others_save_nothing_in_mid_epoch(store: CheckpointStore, work: Path) -> None:
    here = Checkpoint.from_directory(work)
    path = store.save("parent", 3, {"acc": 0.5}, work)
    others: list[dict[str, Any]] = [{"rank": 1, "trial_id": "parent"}, {"trial_id": "clone"}]
    for options in others:
        session = make_session(store=store, restore=path, **options)
        with session.activate():
            assert not session.save(here)


def test_saves_due(store: CheckpointStore, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save of half a second; 0.5 losses an hour: sqrt(2 0.5 7200) = 85 s apart."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("time.monotonic", lambda: clock.now)
    here = Checkpoint.from_directory(work)
    plain, save = store.latest, store.save

    def saved(*given: Any) -> str:
        clock.now += 0.5
        return save(*given)

    monkeypatch.setattr(store, "save", saved)
    assert plain("t1") is None
    path = save("t1", 1, {"acc": 0.5}, work)
    session = make_session(store=store, restore=path, max_epoch=3, saves=SaveTimes(0.5))
    safe = make_session(store=store, restore=path, max_epoch=3)
    other = make_session(store=store, restore=path, max_epoch=3, rank=1, saves=SaveTimes(0.5))
    with session.activate():
        clock.now += 1e6
        assert not cloudtune.save_due(), "no save was measured yet"
        assert cloudtune.save(here)
        clock.now += 84.0
        assert not cloudtune.save_due()
        clock.now += 1.0
        assert cloudtune.save_due()
        assert cloudtune.save(here)
        assert not cloudtune.save_due()
        session.leaving = True
        assert cloudtune.save_due(), "at once"
    with safe.activate():
        assert cloudtune.save(here)
        clock.now += 1e6
        assert not cloudtune.save_due(), "nothing is lost there"
    with other.activate():
        other.leaving = True
        assert not cloudtune.save_due(), "rank 0 saves"


def test_saved_epoch_measures_its_save() -> None:
    times = SaveTimes(3600.0)  # a loss a second: what a save takes decides
    assert not times.due()
    times.saved(8.0, whole=False)
    assert times._took == 8.0
    times.saved(2.0)
    times.saved(8.0, whole=False)
    assert times._took == 2.0
    assert interval(2.0, 3600.0) == 2.0
    assert interval(0.0, 3600.0) == 1.0, "not for ever saving"
    assert interval(2.0, 0.0) == math.inf
