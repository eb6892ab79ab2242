"""What to write in place of a name of Ray Train or Ray Tune."""

import importlib
import re
from typing import Final

_OF_RAY: Final = re.compile(r"ray\.(train|tune|air)\.(torch\.|session\.)?")
_IN_THE_FILE: Final = (
    "leave it out: cloudtune starts the training function that the experiment file names, on as "
    "many GPUs as the plan gives it"
)
_SPACE: Final = "the search space stands in the experiment file, under `search`"
_SPACES: Final = (
    *("uniform", "loguniform", "quniform", "qloguniform", "randint", "lograndint", "qrandint"),
    *("choice", "randn", "grid_search", "sample_from"),
)
_FOLDER: Final = "write files into a folder, and give Checkpoint.from_directory(folder)"
_HINTS: Final = {
    "get_dataset_shard": "read the data in the script: prepare_data_loader() gives each worker its "
    "share of every batch",
    "accelerate": "take torch.autocast and torch.amp.GradScaler, which work as they are",
    "from_dict": _FOLDER,
    **dict.fromkeys(_SPACES, _SPACE),
}


def is_of_ray(full: str) -> bool:
    """Whether a full name is one of Ray Train or Ray Tune."""
    return _OF_RAY.match(full) is not None


def hint_for(full: str) -> str:
    """Say what to write for a full name of Ray, such as "write cloudtune.report"."""
    if "transformers" in full:
        return "write cloudtune.integrations.transformers.prepare(trainer)"
    if "lightning" in full:
        return "cloudtune.integrations.lightning.Trainer takes the place of lightning's Trainer"
    facade = importlib.import_module("cloudtune")
    rest = _OF_RAY.sub("", full)
    name = rest.rpartition(".")[2]
    homes = {
        f"cloudtune.{rest}": rest.partition(".")[0] in facade.__all__,
        f"cloudtune.train.torch.{name}": hasattr(facade.train.torch, name),
        f"cloudtune.get_context().{name}()": hasattr(facade.train.calls.Context, name),
    }
    home = next((home for home, exists in homes.items() if exists), None)
    if name in _HINTS or home is None:
        return _HINTS.get(name, _IN_THE_FILE)
    return f"write {home}"
