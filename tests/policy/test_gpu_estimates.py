"""What a run knows of the speeds of GPU models."""

import math
from dataclasses import replace

import pytest

from cloudtune.model.catalog import InstanceType, Offer
from cloudtune.model.plans import Rentable
from cloudtune.policy.gpu_estimates import PACES, GpuEstimates
from cloudtune.policy.speed_estimates import SpeedEstimates
from tests.builders import profile


def rentable(gpu: str, error: float = 1.0, gpu_error: float = 0.3, gpus: int = 1) -> Rentable:
    """Return an offer of a GPU model on which an epoch is believed to take 10 s."""
    machine = InstanceType(f"{gpu}.{gpus}x", gpus, gpu, 16384, 8, 65536)
    made = replace(profile({1.0: 10.0}, name=machine.name), error=error, gpu_error=gpu_error)
    return Rentable(Offer(machine, "on-demand", "us-east-1", 1.0), made, 4)


def estimates(*rentables: Rentable) -> GpuEstimates:
    return GpuEstimates(rentables)


A, B, C = rentable("a"), rentable("b"), rentable("c")


def test_before_any_epoch_the_errors_of_two_models_add_up() -> None:
    known = estimates(A, B)
    assert known.factor("a") == 1.0
    assert known.spread("a", "b") == pytest.approx(math.hypot(0.3, 0.3))
    assert known.spread("a", "a") == 0.0


def test_a_model_that_nothing_has_trained_on_shares_what_is_common() -> None:
    """What is common may be off by far more, so most of what was seen is put down to it."""
    known = estimates(A, B)
    for trial in range(50):
        known.note(f"t{trial}", A.offer, 1.0, 30.0)
    assert known.factor("a") == pytest.approx(3.0, rel=0.03)
    assert known.factor("b") == pytest.approx(3.0 ** (1 / (1 + 0.3**2)), rel=0.03)
    assert 0.3 < known.spread("a", "b") < math.hypot(0.3, 0.3)


def test_where_nothing_is_common_one_model_says_nothing_of_another() -> None:
    known = estimates(rentable("a", error=0.0), rentable("b", error=0.0))
    for trial in range(50):
        known.note(f"t{trial}", A.offer, 1.0, 15.0)
    assert known.factor("a") > 1.4
    assert known.factor("b") == pytest.approx(1.0)


def test_a_trial_on_both_models_compares_them_without_its_pace() -> None:
    apart, paired = estimates(A, B), estimates(A, B)
    for number, pace in enumerate((0.6, 1.0, 1.7)):
        apart.note(f"a{number}", A.offer, 1.0, 10.0 * pace)
        paired.note(f"t{number}", A.offer, 1.0, 10.0 * pace)
    apart.note("b0", B.offer, 1.0, 20.0)
    paired.note("t0", B.offer, 1.0, 12.0)
    assert paired.spread("a", "b") < 0.5 * apart.spread("a", "b")
    assert paired.factor("b") / paired.factor("a") == pytest.approx(2.0, rel=0.1)


def test_more_trials_compare_models_better() -> None:
    known = estimates(A, B)
    spreads = []
    for number in range(16):
        known.note(f"a{number}", A.offer, 1.0, 10.0 * (1 + 0.2 * (number % 3)))
        known.note(f"b{number}", B.offer, 1.0, 20.0 * (1 + 0.2 * (number % 3)))
        spreads.append(known.spread("a", "b"))
    assert spreads[0] > PACES > 2 * spreads[-1]


def test_trials_that_differ_more_compare_models_worse() -> None:
    alike, apart = estimates(A, B), estimates(A, B)
    for number in range(16):
        offer = (A, B)[number % 2].offer
        alike.note(f"t{number}", offer, 1.0, 10.0)
        apart.note(f"t{number}", offer, 1.0, 10.0 * 2.0 ** (number % 4 - 1.5))
    assert apart.spread("a", "b") > 2 * alike.spread("a", "b")


def test_another_width_on_one_model_alone_says_nothing_of_the_model() -> None:
    """Trials that share GPUs are slower: not because of the GPU model that they are on."""
    known = estimates(A, B)
    for number in range(9):
        known.note(f"a{number}", A.offer, 1.0, 10.0)
        known.note(f"b{number}", B.offer, 1.0, 10.0)
    for number in range(9):
        known.note(f"c{number}", B.offer, 0.5, 17.0)
    assert known.factor("b") == pytest.approx(known.factor("a"), rel=0.05)


def test_another_width_on_both_models_compares_them() -> None:
    known = estimates(A, B)
    known.note("t0", A.offer, 1.0, 10.0)
    for number in range(9):
        known.note(f"a{number}", A.offer, 0.5, 17.0)
        known.note(f"b{number}", B.offer, 0.5, 34.0)
    assert known.factor("b") / known.factor("a") == pytest.approx(2.0, rel=0.1)


def test_types_with_the_same_model_are_one() -> None:
    known = estimates(A, rentable("a", gpus=8), B)
    known.note("t0", A.offer, 1.0, 10.0)
    known.note("t1", rentable("a", gpus=8).offer, 1.0, 10.0)
    assert known.epochs == {"a": 2}


def test_news_are_epochs_that_doubled_on_a_model_whose_speed_was_not_measured() -> None:
    measured = rentable("m", gpu_error=0.0)
    known = estimates(A, measured)
    for number in range(8):
        known.note(f"t{number}", A.offer, 1.0, 10.0)
        known.note(f"m{number}", measured.offer, 1.0, 10.0)
    assert known.news == 4, "at the epochs 1, 2, 4 and 8"


def test_a_run_on_measured_profiles_has_no_news() -> None:
    measured = rentable("m", gpu_error=0.0)
    known = estimates(measured)
    known.note("t0", measured.offer, 1.0, 10.0)
    assert known.news == 0
    assert known.epochs == {}


@pytest.mark.parametrize(("gpu_error", "seconds"), [(0.3, 25.0), (0.0, 10.0)])
def test_an_unmeasured_type_is_as_much_slower_as_one_with_the_same_gpu(
    gpu_error: float, seconds: float
) -> None:
    here = rentable("a")
    small = rentable("b")
    large = rentable("b", gpu_error=gpu_error, gpus=4)
    gpus = {each.offer.instance_type.name: each.offer.gpu_model for each in (here, small, large)}
    speeds = SpeedEstimates(gpus)
    speeds.note("t0", here.profile, 1.0, 10.0)
    speeds.note("t0", small.profile, 1.0, 25.0)
    assert speeds.corrected(small, ()).profile.epoch_seconds(1.0) == pytest.approx(25.0)
    assert speeds.corrected(large, ()).profile.epoch_seconds(1.0) == pytest.approx(seconds)
