"""How many trials share a GPU, from one and two on it: `profile --pack auto`, `run` and `plan`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from cloudtune.api.experiments import load_experiment
from cloudtune.engine.simulator import synthetic_metric
from cloudtune.lifecycle import measuring
from cloudtune.lifecycle.flow import prepare
from cloudtune.lifecycle.reporter import Reporters
from cloudtune.profiles.packing import pack_shares
from cloudtune.profiles.store import read
from tests.bench import Done, called
from tests.builders import profile
from tests.builders.experiments import write_experiment
from tests.builders.worlds import Cramped, measure_in

if TYPE_CHECKING:
    from pathlib import Path

    from cloudtune.model.plans import Rentable
    from cloudtune.model.scaling import ScalingProfile
    from cloudtune.policy.measure import MeasurePolicy

T4 = "g4dn.12xlarge"  # four GPUs of 16,384 MiB each
TEXT = """\
name: small
train: train.py:train
metric: {{name: score, mode: max}}
search: {{x: {{uniform: [0, 1]}}}}
trials: 16
epochs: {{min: 1, max: 9}}
strategy: {strategy}
history: off
limits: {{deadline: 2h, budget: $40}}
cloud: {{provider: aws, instances: [g4dn.12xlarge], max_instances: 1}}
"""


class Place:
    """A folder with an experiment on AWS, whose machines are simulated; `measured` are widths."""

    def __init__(
        self, folder: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.folder = folder
        self._capsys = capsys
        self._patch = patch
        self.measured: list[tuple[float, ...]] = []
        patch.chdir(folder)
        patch.setenv("CLOUDTUNE_HOME", str(folder / "home"))
        (folder / "train.py").write_text("def train(config):\n    pass\n")
        patch.setattr(measuring, "preflight", lambda *_, **__: None)  # it would ask AWS

    def __call__(self, *words: object) -> Done:
        return called(self._capsys, words[0], self.experiment("sha"), *words[1:])

    def experiment(self, strategy: str) -> Path:
        return write_experiment(self.folder, TEXT.format(strategy=strategy))

    def trains(self, one: float, two: float, mib: float | None) -> None:
        """Have an epoch take n seconds for one, and for two on a GPU, with that memory."""
        truth = profile({0.5: two, 1.0: one, 2.0: one / 1.8, 4.0: one / 3}, name=T4)

        def world(machine: Rentable) -> Cramped:
            return Cramped((machine,), "score", synthetic_metric("max", 0), mib=mib)

        def note(policy: MeasurePolicy) -> None:
            self.measured.append(tuple(sorted(policy.figures.epoch)))

        measure_in(self._patch, world, truth, note)

    @property
    def profile(self) -> ScalingProfile:
        [path] = self.folder.glob("home/profiles/*.json")
        [kept] = read(path)
        return kept


@pytest.fixture
def place(
    no_aws: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Place:
    return Place(tmp_path, capsys, monkeypatch)


WHOLE = (1.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("two", "mib", "shares", "line"),
    [
        (8.4, 1000.0, (1 / 8, 1 / 4, 1 / 2), "1/4, 1/8 of a GPU predicted, not measured"),
        (8.4, 3000.0, (1 / 5, 1 / 4, 1 / 2), "up to 5 share a GPU; 1/4, 1/5 of a GPU predicted"),
        (8.4, 7000.0, (1 / 2,), "two trials on a GPU take 1.05 times as long as one: up to 2"),
        (8.4, None, (1 / 2,), "up to 2 share a GPU, as the memory that each needs is unknown"),
        (8.4, 9000.0, (), "2 or more trials on a GPU left out: one has 9,000 of its 16,384 MiB"),
        (12.0, 1000.0, (1 / 4, 1 / 2), "take 1.50 times as long as one: up to 4 share a GPU"),
        (16.0, 1000.0, (), "two trials on a GPU take 2.00 times as long as one: none share a GPU"),
        (15.5, 1000.0, (), "two trials on a GPU take 1.94 times as long as one: none share a GPU"),
    ],
)
def test_one_and_two_on_a_gpu_say_how_many(
    place: Place, two: float, mib: float | None, shares: tuple[float, ...], line: str
) -> None:
    place.trains(8.0, two, mib)
    done = place("profile", "--pack", "auto", "--yes").succeeded()
    assert line in " ".join(done.out.split())
    assert place.profile.widths == (*shares, *WHOLE)
    assert place.measured == [WHOLE if mib == 9000.0 else (0.5, *WHOLE)]


def test_predicted_share_is_less_sure(place: Place) -> None:
    place.trains(8.0, 10.0, 1000.0)
    done = place("profile", "--pack", "auto", "--yes")
    assert "predicted ± 34%" in done.out
    epoch = place.profile.epoch
    assert [epoch[w].mean for w in (1 / 2, 1 / 4, 1 / 8)] == [10.0, 14.0, 22.0], "2 s for each more"
    assert [epoch[w].n > 0 for w in (1 / 2, 1 / 4, 1 / 8)] == [True, False, False]
    assert epoch[1 / 2].error == 0.0
    assert epoch[1 / 8].error == pytest.approx(0.34 * 22.0)
    said = " ".join(place("plan", "--verbose").out.split())
    assert "epochs on 1/8 GPU ± 34%: predicted from one and two, not measured" in said
    assert "1/2 GPU ±" not in said


@pytest.mark.parametrize(("spread", "widths"), [(0.0, (0.5, 1.0)), (0.1, (1.0,))])
def test_a_gain_within_the_noise_is_none(spread: float, widths: tuple[float, ...]) -> None:
    gains_a_tenth = profile({0.5: 14.4, 1.0: 8.0}, spread=spread)
    assert pack_shares(gains_a_tenth, 0)[0].widths == widths


def test_one_gpu_is_measured_where_other_widths_are_named(place: Place) -> None:
    place.trains(8.0, 8.0, 1000.0)
    assert place("profile", "--pack", "auto", "--widths", "4", "--yes").code == 0
    assert place.measured == [(0.5, 1.0, 4.0)]


@pytest.mark.parametrize(
    ("strategy", "mib", "widths"),
    [
        ("sha", 1000.0, (0.5, *WHOLE)),
        ("sha", None, WHOLE),  # two may not fit
        ("{name: sha, allocator: same}", 1000.0, WHOLE),  # its trials have one GPU each
    ],
)
def test_a_run_that_measures_first_packs_what_fits(
    place: Place, strategy: str, mib: float | None, widths: tuple[float, ...]
) -> None:
    place.trains(8.0, 8.4, mib)
    wanted = load_experiment(place.experiment(strategy), {})
    prepare(wanted, None, time.time(), Reporters(yes=True), pace=True)
    assert place.measured[0] == widths
    assert place.profile.widths[0] == (1 / 8 if 0.5 in widths else 1.0)


@pytest.mark.parametrize("pack", ["1", "65", "many"])
def test_another_pack_is_refused(place: Place, pack: str) -> None:
    place("profile", "--pack", pack).refused("write auto, or a number from 2 to 64")
