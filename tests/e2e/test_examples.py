"""The examples: `plan` is as printed, and each trains to its end on this machine."""

import re
from pathlib import Path

import pytest

from cloudtune.infra.node import this_machine
from docs.screen import filled
from tests.bench import Bench

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "examples/README.md").read_text("utf-8")
EXAMPLES = re.findall(r"^\$ cloudtune plan (\S+)$", PAGE, re.MULTILINE)


def test_the_page_shows_what_plan_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with two cores, as the page says: trials share them."""
    this_machine.this_machine.cache_clear()
    monkeypatch.setattr(this_machine, "cores", lambda: 2)
    assert len(EXAMPLES) == 6
    assert filled(PAGE) == PAGE, "run `make docs`"


@pytest.mark.walk("each trains for a minute, and some import their libraries in every trial")
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_trains_to_its_end(bench: Bench, example: str) -> None:
    bench.environment |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    bench("run", ROOT / example).succeeded("0 instances left")
    report = bench.last_report()
    assert report["exit_code"] == 0
    assert [trial["error"] for trial in report["trials"] if trial["error"]] == []
    assert list(Path(report["best"]["checkpoint"]).iterdir())
    lengths = {len(trial["history"]) for trial in report["trials"]}
    assert max(lengths) > min(lengths), "none went on"
