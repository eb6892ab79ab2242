"""What `cloudtune run` says at its end."""

import pytest

from cloudtune.runs.job import Job
from tests.bench import Bench

LOCAL = """
limits: {deadline: 50s}
cloud: {provider: local, slots: 2}
"""
PRICED = """
limits: {deadline: 50s, budget: $0.02}
cloud: {provider: local, slots: 2, price: 1.0}
"""


@pytest.mark.parametrize(
    ("limits", "words"),
    [(LOCAL, "--deadline +1h"), (PRICED, "--deadline +1h --budget '+$10'")],
    ids=["deadline", "both"],
)
def test_continue_hint_names_limits(
    limits: str, words: str, bench: Bench, simulated: list[Job]
) -> None:
    path = bench.experiment(trials=16, first=2, last=8)
    path.write_text(path.read_text().partition("limits:")[0] + limits)
    bench.profile_on("local-2x-cpu", {1.0: 4, 2.0: 5}, boot=3.0)
    done = bench.here("run", path, "--strategy", "asha")
    assert done.code == 0, done.err
    assert done.out.rstrip().endswith(f"Continue: cloudtune resume {simulated[0].run} {words}")
