"""What isn't installed is asked for by the name of its extra, before anything is begun."""

from importlib.util import find_spec
from typing import Any

import pytest

from cloudtune import errors
from tests.bench import Bench


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of modules that count as not installed."""
    names: set[str] = set()

    def found(name: str) -> Any:
        return None if name in names else find_spec(name)

    monkeypatch.setattr(errors, "find_spec", found)
    return names


@pytest.mark.parametrize(
    "cloud",
    [
        "limits: {deadline: 3m, budget: $2}\ncloud: {instances: [g7.12xlarge]}",
        "limits: {deadline: 3m}\ncloud: {provider: local, slots: 2}",
    ],
)
def test_an_emulated_run_needs_moto(bench: Bench, missing: set[str], cloud: str) -> None:
    path = bench.experiment()
    path.write_text(path.read_text().partition("limits:")[0] + cloud)
    missing |= {"moto", "flask_cors"}
    done = bench.here("run", path).refused()
    result = "needs moto and flask_cors, which are not installed: pip install 'cloudtune[emulator]'"
    assert result in done.err
    assert bench.machines() == []


def test_a_plan_needs_neither_moto_nor_plotly(bench: Bench, missing: set[str]) -> None:
    missing |= {"moto", "flask", "flask_cors", "plotly"}
    path = bench.ready()
    assert bench.here("plan", path).code == 0
