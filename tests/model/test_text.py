import pytest

from cloudtune.model import text as phrases
from tests.builders.proposals import MIXED


@pytest.mark.parametrize(
    ("width", "text"),
    [(1.0, "1 GPU"), (8.0, "8 GPUs"), (0.5, "1/2 GPU"), (1 / 3, "1/3 GPU"), (0.7, "0.7 GPU")],
)
def test_widths(width: float, text: str) -> None:
    assert phrases.gpus_text(width) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (1e-9, "<0.1 %"),
        (0.0312, "3.1 %"),
        (0.973, "97.3 %"),
        (0.9996, ">99.9 %"),
        (1.0, "100 %"),
    ],
)
def test_shares_are_never_rounded_to_certainty(share: float, text: str) -> None:
    assert phrases.percent(share) == text


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0, "today"),
        (1, "1 day old"),
        (45, "45 days old"),
        (122, "4 months old"),
        (1200, "3 years old"),
    ],
)
def test_ages(days: int, text: str) -> None:
    assert phrases.age_text(days) == text


def test_a_stage_of_two_groups_shows_its_split() -> None:
    first, second, _ = MIXED.stages
    assert phrases.stage_text(first) == (
        "12 trials at 1/2 GPU on 1 x p9.big spot us-east-1a "
        "and 4 trials at 1 GPU on 4 x g9.small on-demand"
    )
    assert phrases.stage_text(second) == "2 GPUs each, on 1 x p9.big spot us-east-1a"
