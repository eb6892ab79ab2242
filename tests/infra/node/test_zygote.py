"""When the user's module may be imported where workers are forked, and when not."""

from pathlib import Path

import pytest

from tests.bench import python

ROOT = Path(__file__).resolve().parents[3]

MODULES = {
    "safe": ("import torch\nSCALE = torch.ones(3).sum()", ""),
    "raises": ("raise KeyError('data')", "its import raised KeyError"),
    "leaves": ("raise SystemExit(3)", "its import raised SystemExit"),
    "asks": (
        "import os\nRANK, HOME = os.environ.get('RANK'), os.environ.get('HOME')",
        "its import reads RANK, which each worker has its own of",
    ),
    "threads": (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
        "its import starts threads",
    ),
    "computes": (
        "import torch\ntorch.set_num_threads(2)\ntorch.ones(999, 999).exp().sum()",
        "its import starts threads",
    ),
    "alone": (
        "import os\nos.register_at_fork(after_in_child=lambda: os._exit(7))",
        "after its import, forked processes can't train",
    ),
}

# Imports once, and tries each module in a process of its own, forked as a worker would be.
PROGRAM = """
import os, sys
from cloudtune.infra.node import zygote
zygote.import_all()
for name in sys.argv[1:]:
    sys.stdout.flush()
    if os.fork() == 0:
        print(name, repr(zygote.import_users(f"{name}.py:train")), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("users")
    for name, (source, _) in MODULES.items():
        (folder / f"{name}.py").write_text(f"{source}\n\ndef train(config): ...\n")
    done = python(PROGRAM, *MODULES, cwd=folder, PYTHONPATH=str(ROOT))
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", MODULES)
def test_harmless_modules_are_preloaded(name: str, answers: dict[str, str]) -> None:
    assert answers[name] == repr(MODULES[name][1])
