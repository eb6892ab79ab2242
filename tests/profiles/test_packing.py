import pytest

from cloudtune.model.scaling import Measurement
from cloudtune.profiles.packing import packed_widths, pairs, spread

ALONE = Measurement(100.0, 3.0, 1)


def test_each_of_two_takes_longer_by_its_share() -> None:
    found = packed_widths(ALONE, workload="transformer-multi30k", gpu="V100", batch=16)
    assert found[0.5].mean == pytest.approx(100.0 / 0.87976)


def test_how_sure_it_is_comes_from_the_other_batch_sizes() -> None:
    shares = (0.31636, 0.36625, 0.49813)
    mean = sum(shares) / 3
    deviation = (sum((share - mean) ** 2 for share in shares) / 2) ** 0.5
    assert spread("resnet50-imagenet", "v100") == pytest.approx(deviation)
    found = packed_widths(ALONE, workload="resnet50-imagenet", gpu="v100", batch=64)[0.5]
    assert found.sd == pytest.approx(found.mean * (0.03**2 + (deviation / 0.49813) ** 2) ** 0.5)


def test_a_loss_stays_a_loss() -> None:
    """Two ResNet-50 on a V100 at a batch of 16: together 63 % of one alone."""
    found = packed_widths(ALONE, workload="resnet50-imagenet", gpu="v100", batch=16)
    assert found[0.5].mean > 3 * ALONE.mean
    lost = [pair for pair in pairs() if pair.share is not None and pair.share < 0.5]
    assert len(lost) > 10


@pytest.mark.parametrize(
    ("workload", "gpu", "batch"),
    [
        ("resnet50-imagenet", "v100", 128),  # out of memory
        ("resnet50-imagenet", "v100", 24),
        ("resnet50-imagenet", "t4", 16),
        ("gpt", "v100", 16),
    ],
)
def test_what_does_not_run_or_was_not_measured_has_no_packed_width(
    workload: str, gpu: str, batch: int
) -> None:
    assert packed_widths(ALONE, workload=workload, gpu=gpu, batch=batch) == {}


def test_some_pairs_do_not_run() -> None:
    assert sum(pair.share is None for pair in pairs()) == 7
