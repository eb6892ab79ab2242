"""Trials in processes of their own, which read their batches by `prepare_data_loader(shared=)`."""

import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import cloudtune
from cloudtune.errors import UsageError
from cloudtune.train.session import Session
from cloudtune.train.shared_input import serving
from cloudtune.train.shared_input.order import Batches, BatchOrder
from cloudtune.train.shared_input.place import INPUT_VARIABLE, Meeting
from cloudtune.train.shared_input.reading import Reader
from tests.bench import wait_for
from tests.guard import is_alive

SAMPLES, BATCH = 60, 4
BATCHES = SAMPLES // BATCH
Batch = tuple[int, list[int], float]
"""Its epoch, its samples, and the sum of what chance made of them."""


class Points(Dataset[Any]):
    """Points that chance moves; each that is loaded is written down, with who loaded it."""

    def __init__(self, reads: Path, turn: float = 1.0, trouble: str = "") -> None:
        self.reads_file, self.turn, self.trouble = str(reads), turn, trouble

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if self.trouble == "raises" and index == 17:
            raise ValueError("sample 17 is broken")
        if self.trouble.startswith("kills") and os.getppid() != TESTS and index == 17:
            mine = self.trouble == "kills who loads"
            os.kill(os.getpid() if mine else os.getppid(), signal.SIGKILL)
        file = os.open(self.reads_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{index} {os.getpid()}\n".encode())
        os.close(file)
        moved = random.random() + float(np.random.rand()) + torch.rand(3)
        return {"at": moved * self.turn, "index": index}


TESTS = os.getpid()


def session(name: str, epochs: int = 2, **more: Any) -> Session:
    result = Session(name, lambda _report: None, "", "max", epochs, **more)
    result.grant(epochs + 1)
    return result


def read(
    folder: Path, name: str, *, pause: float = 0.0, stop: int = -1, **given: Any
) -> Iterator[Batch]:
    """Train one trial: give its batches, and put as many seconds into each."""
    data = Points(folder / "loaded", given.get("turn", 1.0), given.get("trouble", ""))
    loader = DataLoader(data, BATCH, shuffle=True, num_workers=given.get("workers", 0))
    with session(name, **given.get("session", {})).activate():
        mine = cloudtune.prepare_data_loader(loader, shared=given.get("shared", True))
        assert len(mine) == BATCHES
        together = given.get("together")
        if together is not None:
            together.wait()
        for epoch in cloudtune.epochs():
            for number, batch in enumerate(mine):
                yield epoch, batch["index"].tolist(), batch["at"].sum().item()
                batch["at"].zero_()
                time.sleep(pause)
                if (epoch, number) == (1, stop):
                    return
            if together is not None:
                together.wait()
            cloudtune.report({"loss": 1.0})


class Trials:
    """Trials that train at once; `end` gives what each has read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._context = multiprocessing.get_context("fork")
        self._pipes: list[Any] = []
        self.running: list[Any] = []

    def together(self, count: int) -> Any:
        """Return what has n trials begin at once, and end an epoch at once."""
        return self._context.Barrier(count)

    def begin(self, reads: Callable[..., Iterator[Batch]] = read, **given: Any) -> None:
        ours, its = self._context.Pipe()
        name = f"t{len(self.running)}"
        target = self._train(its, reads, name, given)
        self.running.append(self._context.Process(target=target, name=name))
        self._pipes.append(ours)
        self.running[-1].start()
        its.close()

    def _train(self, channel: Any, reads: Any, name: str, given: Any) -> Callable[[], None]:
        def train() -> None:
            sys.stderr = (self.folder / f"{name}.log").open("w", buffering=1)
            result, error = [], ""
            try:
                result.extend(reads(self.folder, name, **given))
            except Exception as raised:  # noqa: BLE001
                error = f"{type(raised).__name__}: {raised}"
            channel.send((result, error))

        return train

    def end(self) -> list[Any]:
        result = []
        for pipe, process in zip(self._pipes, self.running, strict=True):
            try:
                result.append(pipe.recv())
            except EOFError:
                result.append(([], "was killed"))
            pipe.close()
            process.join()
        return result

    def log(self, number: int) -> str:
        path = self.folder / f"t{number}.log"
        return path.read_text() if path.exists() else ""

    def loaded(self) -> Counter[int]:
        lines = (self.folder / "loaded").read_text().split("\n")[:-1]
        return Counter(int(line.split()[0]) for line in lines)

    def loaders(self) -> set[int]:
        lines = (self.folder / "loaded").read_text().split("\n")[:-1]
        return {int(line.split()[1]) for line in lines}


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    monkeypatch.setenv(INPUT_VARIABLE, str(tmp_path / "input"))
    return Trials(tmp_path)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Batch]:
    """What a trial reads where no other trial shares."""
    return list(read(tmp_path_factory.mktemp("alone"), "alone"))


def test_four_trials_load_once_what_one_reads(trials: Trials, alone: list[Batch]) -> None:
    assert len(alone) == 2 * BATCHES
    orders = [[samples for at, samples, _ in alone if at == epoch] for epoch in (1, 2)]
    assert orders[0] != orders[1], "each epoch has an order of its own"
    together = trials.together(4)
    for _ in range(4):
        trials.begin(pause=0.005, together=together)
    assert trials.end() == [(alone, "")] * 4
    assert set(trials.loaded().values()) == {2}, "each sample once an epoch"
    assert len(trials.loaders()) == 1
    logs = [trials.log(number) for number in range(4)]
    assert sum("by this trial's loading process" in log for log in logs) == 1
    assert sum("by another trial's" in log for log in logs) == 3
    wait_for(lambda: not any(map(is_alive, trials.loaders())))
    assert {path.suffix for path in (trials.folder / "input").iterdir()} == {".lock"}


def test_as_many_processes_load_as_one_loader_wants(trials: Trials, alone: list[Batch]) -> None:
    together = trials.together(2)
    for _ in range(2):
        trials.begin(pause=0.005, workers=2, together=together)
    assert trials.end() == [(alone, "")] * 2
    assert set(trials.loaded().values()) == {2}
    assert len(trials.loaders()) == 2


def test_first_trial_may_end(trials: Trials, alone: list[Batch]) -> None:
    trials.begin(pause=0.1, stop=4)
    wait_for((trials.folder / "loaded").exists)
    together = trials.together(2)
    for _ in range(2):
        trials.begin(pause=0.02, together=together)
    assert trials.end() == [(alone[:5], ""), (alone, ""), (alone, "")]
    assert len(trials.loaders()) == 2
    assert max(trials.loaded().values()) <= 3, "what was ahead is loaded again, and nothing else"


@pytest.mark.parametrize("whom", ["who serves", "who loads"])
def test_no_batch_is_lost_or_read_twice(trials: Trials, alone: list[Batch], whom: str) -> None:
    for _ in range(3):
        trials.begin(pause=0.05)
    wait_for(lambda: (trials.folder / "loaded").exists() and len(trials.loaded()) > 30)
    (loader,) = trials.loaders()
    os.kill(psutil.Process(loader).ppid() if whom == "who serves" else loader, signal.SIGKILL)
    assert trials.end() == [(alone, "")] * 3


def test_a_trial_that_is_killed_harms_no_other(trials: Trials, alone: list[Batch]) -> None:
    trials.begin(pause=0.2)
    wait_for((trials.folder / "loaded").exists)
    trials.begin(pause=0.01)
    wait_for(lambda: "another trial's" in trials.log(1))
    trials.running[0].kill()
    assert trials.end() == [([], "was killed"), (alone, "")]


def test_another_users_process_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(tmp_path / "input", "key")
    assert (tmp_path / "input").stat().st_mode & 0o777 == 0o700
    child = serving.begin(
        meeting, 0, serving.Loading(Batches([1], BatchOrder([1], 0, False), 1, False, list))
    )
    assert child is not None
    connection = meeting.connect(0)
    assert connection is not None
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert meeting.connect(0) is None
    connection.close()
    os.waitpid(child, 0)


def test_trials_with_another_augmentation_read_apart(trials: Trials, alone: list[Batch]) -> None:
    together = trials.together(3)
    for turn in (1.0, 2.0, 1.0):
        trials.begin(pause=0.005, turn=turn, together=together)
    (first, _), (other, _), (third, _) = trials.end()
    assert first == third == alone
    assert [item[:2] for item in other] == [item[:2] for item in alone]
    assert [item[2] for item in other] != [item[2] for item in alone]
    assert set(trials.loaded().values()) == {4}
    assert len(trials.loaders()) == 2


def test_a_slow_trial(trials: Trials, alone: list[Batch], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudtune.train.shared_input.stream.KEPT", 12)
    trials.begin(pause=60.0)
    wait_for((trials.folder / "loaded").exists)
    trials.begin()
    trials.running[1].join(30)
    trials.running[0].kill()
    assert trials.end() == [([], "was killed"), (alone, "")]
    assert "by another trial's" in trials.log(1)


def test_a_datasets_error_is_raised_in_the_trial(trials: Trials) -> None:
    for _ in range(2):
        trials.begin(trouble="raises", pause=0.005)
    assert [error for _, error in trials.end()] == ["ValueError: sample 17 is broken"] * 2
    assert "loads for itself from here on: ValueError: sample 17 is broken" in trials.log(0)


@pytest.mark.parametrize("whom", ["kills who loads", "kills who serves"])
def test_data_that_none_else_can_load(trials: Trials, alone: list[Batch], whom: str) -> None:
    for _ in range(2):
        trials.begin(trouble=whom)
    assert trials.end() == [(alone, "")] * 2
    assert "from here on: loading processes were lost again and again" in trials.log(0)


def test_two_passes_over_one_loader_are_two_epochs_orders(trials: Trials) -> None:
    def twice(folder: Path, name: str) -> Iterator[Batch]:
        loader = DataLoader(Points(folder / "loaded"), BATCH, shuffle=True)
        with session(name).activate():
            mine = cloudtune.prepare_data_loader(loader, shared=True)
            assert len(list(mine)) == BATCHES
            for first, second in zip(mine, mine, strict=True):
                yield 1, first["index"].tolist(), 0.0
                yield 2, second["index"].tolist(), 0.0

    trials.begin(twice)
    ((result, error),) = trials.end()
    assert not error
    for number in (1, 2):
        indices = [index for which, some, _ in result if which == number for index in some]
        assert sorted(indices) == list(range(SAMPLES))


def test_broken_epoch(trials: Trials, alone: list[Batch], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudtune.train.shared_input.stream.KEPT", 10)
    together = multiprocessing.get_context("fork").Barrier(2)

    def some(folder: Path, name: str) -> Iterator[Batch]:
        loader = DataLoader(Points(folder / "loaded"), BATCH, shuffle=True)
        with session(name).activate():
            mine = cloudtune.prepare_data_loader(loader, shared=True)
            for epoch in cloudtune.epochs():
                together.wait()
                for number, batch in enumerate(mine):
                    yield epoch, batch["index"].tolist(), batch["at"].sum().item()
                    time.sleep(0.1)  # what was asked for ahead has come
                    if number == 2:
                        break
                together.wait()
                cloudtune.report({"loss": 1.0})

    for _ in range(2):
        trials.begin(some)
    assert trials.end() == [([*alone[:3], *alone[BATCHES : BATCHES + 3]], "")] * 2
    assert len(trials.loaders()) == 1


def test_the_server_ends_with_its_last_reader(tmp_path: Path) -> None:
    numbers = list(range(40))
    batches = Batches(
        numbers, BatchOrder(numbers, 0, shuffles=True), 2, drop_last=False, collate=list
    )
    reader = Reader(Meeting(tmp_path / "input", "key"), serving.Loading(batches))
    here = psutil.Process()
    before = here.children()
    files = []
    for epoch in range(8):
        assert sorted(item for batch in reader.read(epoch) for item in batch) == numbers
        (child,) = (item for item in here.children() if item not in before)
        files.append(child.num_fds())
    assert files[-1] <= files[2] + 1, "each epoch has 20 batches, of which 32 are kept"
    reader.close()
    os.waitpid(child.pid, 0)


def test_several_gpus_have_the_same_steps(tmp_path: Path, alone: list[Batch]) -> None:
    shares = [
        [
            set(indices)
            for _, indices, _ in read(tmp_path, "t", session={"world_size": 3, "rank": rank})
        ]
        for rank in range(3)
    ]
    steps = list(zip(*shares, strict=True))
    assert [set.union(*parts) for parts in steps] == [set(indices) for _, indices, _ in alone]
    assert all(sum(map(len, parts)) == BATCH for parts in steps), "each has its share alone"


def test_chance_is_another_one_in_each_epoch(tmp_path: Path) -> None:
    data = DataLoader(Points(tmp_path / "loaded"), BATCH)
    with session("t").activate():
        mine = cloudtune.prepare_data_loader(data, shared=True)
        first, second = (torch.cat([batch["at"] for batch in mine]) for _ in range(2))
    assert not torch.isclose(first, second).any()


def test_other_runs_have_other_orders(tmp_path: Path, alone: list[Batch]) -> None:
    other = list(read(tmp_path, "t", session={"seed": 1}))
    assert [item[1] for item in other] != [item[1] for item in alone]


def test_the_scripts_own_chance_is_left_as_it_is(tmp_path: Path) -> None:
    torch.manual_seed(3)
    wanted = torch.rand(3)
    data = DataLoader(Points(tmp_path / "loaded"), BATCH, shuffle=True)
    with session("t").activate():
        torch.manual_seed(3)
        next(iter(cloudtune.prepare_data_loader(data, shared=True)))
        assert torch.equal(torch.rand(3), wanted)


def test_what_can_not_be_shared_is_reported(
    trials: Trials, capsys: pytest.CaptureFixture[str]
) -> None:
    weighed = torch.utils.data.WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)
    data = Points(trials.folder / "loaded")
    with session("t").activate():
        loader = DataLoader(data, BATCH, sampler=weighed)
        assert len(list(cloudtune.prepare_data_loader(loader, shared=True))) == BATCHES
        assert "the loader has no plain order" in capsys.readouterr().err
        data.file = (trials.folder / "loaded").open()  # type: ignore[attr-defined]
        loader = DataLoader(data, BATCH)
        assert len(list(cloudtune.prepare_data_loader(loader, shared=True))) == BATCHES
        result = capsys.readouterr().err
        data.file.close()  # type: ignore[attr-defined]
    assert "an open file" in result
    assert "give it a name: shared='…'" in result


def test_shared_batches_cannot_be_whole_in_each_worker(tmp_path: Path) -> None:
    loader = DataLoader(Points(tmp_path / "loaded"), BATCH)
    with session("t").activate(), pytest.raises(UsageError, match="leave add_dist_sampler=False"):
        cloudtune.prepare_data_loader(loader, add_dist_sampler=False, shared=True)
