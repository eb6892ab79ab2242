"""What holds for every test: nothing is written outside its own folders, and nothing is left."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# The benchmarks are no package of the product's, and are tested as well.
sys.path.append(str(Path(__file__).resolve().parents[1]))

# Torch's threads spin while they wait for each other: on cores that are busy anyway, small networks
# take three times the CPU time with two threads. Read when torch is loaded, and inherited.
os.environ["OMP_NUM_THREADS"] = "1"
# Most people's botocore has no CRT, and signs in Python.
os.environ["BOTO_DISABLE_CRT"] = "true"

WHOLE_RUNS = "tests/e2e/"
WAITING = (
    "tests/e2e/test_company.py",  # the longest first
    "tests/e2e/test_laptop.py",
    "tests/e2e/test_resume.py",
    "tests/e2e/test_run.py",
    WHOLE_RUNS,
    "tests/architecture/test_checks.py",
    "tests/infra/",
    "tests/aws_stand_in/",
)
TOGETHER = {  # what one starts is for all of them
    "tests/e2e/test_laptop.py",
    "tests/e2e/test_old_ledgers.py",
    "tests/e2e/test_ray.py",
    "tests/e2e/test_slurm.py",
}

# A test leaves no thread and no process, and pytest ends.
pytest_plugins = ["tests.guard", "tests.quick", "tests.bench", "tests.outside", "tests.warm"]

# The same examples each time: a run of the tests says something of the code alone. What fails is
# reported as it is, without a search for something smaller, which can take too long. New
# ones are sought, and made smaller, with `pytest --hypothesis-profile=explore`; what they find
# becomes an example.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target)
settings.register_profile("steady", deadline=None, derandomize=True, phases=PHASES)
settings.register_profile("explore", deadline=None, phases=tuple(Phase))
settings.load_profile("steady")


def pytest_configure() -> None:
    """Make a run of tests the same however it was started, and whatever is loaded by then."""
    # A shell has what it starts in the background ignore Ctrl-C, which tests send to commands.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Hypothesis draws constants of modules that are loaded.
    if settings.get_current_profile_name() == "steady":
        assert "is_local_module_file" in vars(providers)
        vars(providers)["is_local_module_file"] = lambda _path: False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what waits most of the time: whole runs, then machines; the others compute."""
    items.sort(key=lambda item: [not item.nodeid.startswith(one) for one in WAITING])
    for item in items:
        walk = item.get_closest_marker("walk")
        if walk and not os.environ.get("WALKS"):
            item.add_marker(pytest.mark.skip(reason=f"{walk.args[0]}; `make walks` runs it"))
        if item.get_closest_marker("cluster"):  # machines boot from nothing: minutes, on busy cores
            item.add_marker(pytest.mark.timeout(1800))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Return what deals the tests out to workers: whole runs one by one, others file by file."""
    return Apart(config, log)


class Apart(LoadScopeScheduling):  # type: ignore[misc]
    """Never more than two whole runs at a time, as they would take each other's seconds.

    Two workers have them first, and then help with the others.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        is_alone = path.startswith(WHOLE_RUNS) and path not in TOGETHER
        return nodeid if is_alone else path

    def _assign_work_unit(self, node: Any) -> None:
        has_runs = node in self.nodes[:2]
        fitting = [item for item in self.workqueue if item.startswith(WHOLE_RUNS) is has_runs]
        if not fitting and not has_runs:
            node.shutdown()
            return
        first = next(iter(fitting or self.workqueue))
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


@pytest.fixture(scope="session", autouse=True)
def torch_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Torch makes its compiler's cache folder in /tmp at import, unless another is set."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("torch"))
    yield
    del os.environ["TORCHINDUCTOR_CACHE_DIR"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a script and a home of its own."""
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text("def train(config): ...\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path
