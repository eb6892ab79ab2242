"""The notebook of examples/ in a real kernel, and a run that its stop button ends."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

from cloudtune.engine.ledger import read_entries
from cloudtune.model.events import EpochDone
from tests.bench import Bench, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.walk("two runs in a notebook's kernel")]

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
LONG = """
stopped = cloudtune.run({**experiment, "epochs": {"min": 2000, "max": 4000}}, deadline="1h")
"""


class Kernel:
    """A notebook's kernel, in a folder with a home of its own."""

    def __init__(self, bench: Bench) -> None:
        self.manager, self.client = start_new_kernel(
            cwd=str(bench.folder), env={**os.environ, **bench.environment}
        )

    def begin(self, code: str) -> str:
        result: str = self.client.execute(code)
        return result

    def does(self, code: str) -> list[dict[str, Any]]:
        """Run a cell, and return its outputs; one that is renewed stands there each time."""
        said: list[dict[str, Any]] = []
        reply = self.client.execute_interactive(code, timeout=240, output_hook=said.append)
        assert reply["content"]["status"] == "ok", (reply["content"], said)
        return [item for item in said if item["msg_type"] not in {"status", "execute_input"}]

    def ended(self, begun: str) -> None:
        """Wait until a cell that was begun is over; it raised nothing."""
        while True:
            message = self.client.get_iopub_msg(timeout=240)
            if message["parent_header"].get("msg_id") == begun:
                assert message["msg_type"] != "error", "\n".join(message["content"]["traceback"])
                if message["content"].get("execution_state") == "idle":
                    return

    def value(self, expression: str) -> str:
        (said,) = self.does(expression)
        text: str = said["content"]["data"]["text/plain"]
        return text


@pytest.fixture
def kernel(bench: Bench) -> Iterator[Kernel]:
    made = Kernel(bench)
    yield made
    made.client.stop_channels()
    made.manager.shutdown_kernel(now=True)


def test_the_notebook_runs_and_gives_everything_back(bench: Bench, kernel: Kernel) -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(not cell.get("outputs") for cell in cells), "kept without outputs"
    said = [
        output
        for cell in cells
        if cell["cell_type"] == "code"
        for output in kernel.does("".join(cell["source"]))
    ]
    result = [item["content"]["text"] for item in said if item["msg_type"] == "stream"]
    assert not [text for text in result if "arning" in text]
    # The run's panel is one output, renewed in place.
    shown = [item for item in said if "display_data" in item["msg_type"]]
    assert {item["msg_type"] for item in shown} == {"display_data", "update_display_data"}
    assert len({item["content"]["transient"]["display_id"] for item in shown}) == 1
    last = shown[-1]["content"]["data"]
    assert "ending (done)" in last["text/plain"]
    assert "\x1b" not in last["text/plain"]
    assert re.search(r"<pre.*best +accuracy 0\.", last["text/html"], re.DOTALL)
    assert kernel.value("result.ended, len(result.trials), bool(best.checkpoint)") == (
        "('done', 6, True)"
    )

    (printed,) = kernel.does("print(plan)")
    assert printed["content"]["text"].startswith("Plan of spirals")

    begun = kernel.begin(LONG)
    (before,) = bench.home.glob("runs/*/ledger.jsonl")
    wait_for(lambda: any(epochs(path) for path in ledgers(bench) - {before}))
    kernel.manager.interrupt_kernel()
    kernel.ended(begun)
    assert kernel.value("stopped.ended, stopped.best is not None") == "('interrupted', True)"
    assert not list(bench.folder.glob("cloudtune_train_*"))


def ledgers(bench: Bench) -> set[Path]:
    return set(bench.home.glob("runs/*/ledger.jsonl"))


def epochs(ledger: Path) -> int:
    return sum(isinstance(entry.event, EpochDone) for entry in read_entries(ledger))
