"""What both programs need that drive Syne Tune's simulator: a table, and a tuner without files.

It imports nothing of cloudtune: a Python that has Syne Tune imports it, from the project's root.
"""

# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import logging
import os
import sys
import tempfile
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

_FOLDER = tempfile.TemporaryDirectory(prefix="syne-tune-")
os.environ["SYNETUNE_FOLDER"] = _FOLDER.name
if find_spec("huggingface_hub") is None:
    # Syne Tune imports it to download tables with, which we don't: we bring our own.
    _hub = ModuleType("huggingface_hub")
    _hub.snapshot_download = None  # type: ignore[attr-defined]
    sys.modules["huggingface_hub"] = _hub

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from syne_tune import StoppingCriterion, Tuner  # noqa: E402
from syne_tune.blackbox_repository.blackbox_tabular import BlackboxTabular  # noqa: E402
from syne_tune.blackbox_repository.simulated_tabular_backend import (  # noqa: E402
    UserBlackboxBackend,
)
from syne_tune.config_space import randint  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NEVER = 10.0**9


@contextmanager
def quiet() -> Iterator[None]:
    """Let nothing that Syne Tune prints or logs be seen."""
    logging.disable(logging.CRITICAL)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


def space(lengths: Sequence[int]) -> dict[str, Any]:
    """Return the configurations of a table: their number in it, and their last epoch."""
    return {"config": randint(0, len(lengths) - 1), "epochs": randint(1, max(lengths))}


def blackbox(given: dict[str, Any]) -> BlackboxTabular:
    """Return the table of `metrics` and `seconds`, of each configuration epoch by epoch.

    What lies behind the last epoch of a configuration is never asked for.
    """
    lengths = [len(row) for row in given["metrics"]]
    values = np.zeros((len(lengths), 1, max(lengths), 2))
    for number, length in enumerate(lengths):
        values[number, 0, :length, 0] = given["metrics"][number]
        values[number, 0, :length, 1] = np.cumsum(given["seconds"][number])
    return BlackboxTabular(
        hyperparameters=pd.DataFrame({"config": range(len(lengths)), "epochs": lengths}),
        configuration_space=space(lengths),
        fidelity_space={"epoch": randint(1, max(lengths))},
        objectives_evaluations=values,
        objectives_names=["score", "elapsed"],
    )


def tuned(
    table: BlackboxTabular,
    scheduler: Any,
    *,
    workers: int,
    look: float,
    callback: Any,
    until: float = NEVER,
    **options: Any,
) -> Tuner:
    """Return the tuner that has run until a virtual second, looking every `look` of them.

    `options` are the backend's.
    """
    backend = UserBlackboxBackend(
        blackbox=table,
        elapsed_time_attr="elapsed",
        max_resource_attr="epochs",
        seed=0,
        tuner_sleep_time=look,
        **options,
    )
    tuner = Tuner(
        trial_backend=backend,
        scheduler=scheduler,
        stop_criterion=StoppingCriterion(max_wallclock_time=until),
        n_workers=workers,
        sleep_time=0,
        print_update_interval=NEVER,
        results_update_interval=NEVER,
        callbacks=[callback],
        save_tuner=False,
    )
    tuner.run()
    return tuner
