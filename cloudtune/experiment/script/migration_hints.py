"""What to write instead of a name of Ray Train or Ray Tune: the sentence for each."""

from __future__ import annotations

import importlib
import re
from typing import Final

_OF_RAY: Final = re.compile(r"ray\.(train|tune|air)\.")
_WITHIN_RAY: Final = re.compile(r"ray\.(train|tune|air)\.((torch|session)\.)?")
_MODULES: Final = frozenset(
    {"torch", "lightning", "huggingface", "transformers", "session", "schedulers", "search"}
)
_IN_THE_FILE: Final = (
    "leave it out: cloudtune starts the training function that the experiment file names, on as "
    "many GPUs as the plan gives it"
)
_SPACE: Final = "the search space stands in the experiment file, under `search`"
_LIGHTNING: Final = (
    "cloudtune.integrations.lightning.Trainer takes the place of lightning's Trainer and needs none"
)
_FOLDER: Final = (
    "write files into a folder, and give Checkpoint.from_directory(folder); as_directory() gives "
    "them back"
)
_OWN_FOLDER: Final = (
    "write into a folder of your own (tempfile), and what is to stay into the checkpoint's"
)
_NOT_TOLD: Final = "not available; use get_trial_id() or get_world_size()"
_SAVED: Final = "leave it out: a checkpoint is copied before report() returns"


_SENTENCES: Final = {
    "get_dataset_shard": "read the data in the script: prepare_data_loader() gives each worker its "
    "share of every batch",
    "accelerate": "take torch.autocast and torch.amp.GradScaler, which work as they are",
    "get_preemption_info": "write cloudtune.is_leaving()",
    "get_all_reported_checkpoints": "get_checkpoint() gives the one to go on from",
    "TorchCheckpoint": _FOLDER,
    "TorchWorkerProfiler": "take torch.profiler",
    "init": _IN_THE_FILE,
    "RayDDPStrategy": _LIGHTNING,
    "RayFSDPStrategy": _LIGHTNING,
    "RayDeepSpeedStrategy": _LIGHTNING,
    "RayLightningEnvironment": _LIGHTNING,
    "LightningTrainer": _LIGHTNING,
    **dict.fromkeys(
        (
            *("TorchTrainer", "TransformersTrainer", "AccelerateTrainer", "DataParallelTrainer"),
            *("ScalingConfig", "RunConfig", "FailureConfig", "CheckpointConfig", "SyncConfig"),
            *("DataConfig", "TorchConfig", "BackendConfig", "LoggingConfig", "Tuner", "TuneConfig"),
            *("run", "with_resources", "with_parameters", "ResumeConfig", "schedulers", "search"),
            *("remote", "shutdown"),
        ),
        _IN_THE_FILE,
    ),
    **dict.fromkeys(
        (
            *(
                "uniform",
                "loguniform",
                "quniform",
                "qloguniform",
                "choice",
                "randint",
                "lograndint",
            ),
            *("randn", "grid_search", "sample_from", "qrandint", "qrandn", "qlograndint"),
        ),
        _SPACE,
    ),
    **dict.fromkeys(
        (
            *("from_dict", "to_dict", "from_uri", "to_uri", "from_bytes", "to_bytes"),
            *("from_state_dict", "from_model", "get_model", "get_metadata", "set_metadata"),
            *("update_metadata", "from_checkpoint"),
        ),
        _FOLDER,
    ),
    **dict.fromkeys(("get_trial_dir", "get_storage", "filesystem"), _OWN_FOLDER),
    **dict.fromkeys(("get_experiment_name", "get_trial_resources"), _NOT_TOLD),
    "checkpoint_dir_name": "leave it out: checkpoints are kept by trial and epoch",
    "checkpoint_upload_mode": _SAVED,
    "delete_local_checkpoint_after_upload": _SAVED,
    "checkpoint_upload_fn": _SAVED,
    "validation": "validate in the script, before report()",
}


def is_of_ray(full: str) -> bool:
    """Whether a full name is of Ray Train or Ray Tune, and no module of theirs."""
    return bool(_OF_RAY.match(full)) and full.rpartition(".")[2] not in _MODULES


def instead_of(full: str) -> str:
    """Say what to write for a full name, as "write cloudtune.report"; empty where nobody knows."""
    last = full.rpartition(".")[2]
    if "huggingface" in full or "transformers" in full:
        return "write cloudtune.integrations.transformers.prepare(trainer)"
    if full.startswith("cloudtune.tune"):
        return "`from cloudtune import train as tune` has what a training function calls"
    if last in _SENTENCES:
        return _SENTENCES[last]
    if "lightning" in full:
        return _LIGHTNING
    return _ours(_WITHIN_RAY.sub("", full)) or (_IN_THE_FILE if is_of_ray(full) else "")


def instead_of_argument(name: str) -> str:
    """Say what to do instead of giving an argument that Ray's function takes; empty for others."""
    return _SENTENCES.get(name, "")


def _ours(full: str) -> str:
    facade = importlib.import_module("cloudtune")
    name = full.rpartition(".")[2]
    homes = {
        f"cloudtune.{full}": full.partition(".")[0] in facade.__all__,
        f"cloudtune.{name}": name in facade.__all__,
        f"cloudtune.train.torch.{name}": hasattr(facade.train.torch, name),
        f"cloudtune.get_context().{name}()": hasattr(facade.train.calls.Context, name),
    }
    return next((f"write {home}" for home, is_there in homes.items() if is_there), "")
