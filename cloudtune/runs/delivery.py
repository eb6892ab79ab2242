"""The best model of an ended run, delivered as plain files; the next best if it can't be read."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cloudtune.engine.ledger import DAMAGED
from cloudtune.model.progress import BestResult
from cloudtune.model.trial import nest, rank_key
from cloudtune.policy.run import RunPolicy
from cloudtune.runs.moved import Places
from cloudtune.train.best import keep_best, read_note
from cloudtune.train.checkpoint import CheckpointStore, read_manifest
from cloudtune.train.storage import CheckpointError

# Beside a run's ledger: what was delivered.
_RECORD = "best.json"


@dataclass(frozen=True)
class DeliveredModel:
    """The files of a checkpoint as the script wrote them, in the folder `path`.

    They are of the run's best epoch, unless `why` says why that one couldn't be delivered; "" if it
    was. `checkpoint` is the stored checkpoint that they come from.
    """

    path: str
    checkpoint: str
    trial: str
    epoch: int
    metrics: Mapping[str, float]
    why: str = ""


def deliver(folder: Path, policy: RunPolicy, uri: str, stored: str) -> DeliveredModel:
    """Copy the best model of a run to `uri`/best, and read all of it for that.

    `stored` is the checkpoint of its best epoch. Where that can't be read, it is an earlier epoch
    of the same trial, the last one first, then the best epoch of any other trial. The run's folder
    records which one it is, so that a remote storage isn't asked each time.

    Raises:
        CheckpointError: none of the run's checkpoints can be read.
        StorageError: the storage failed repeatedly.
    """
    best = policy.best
    assert best is not None
    why = "" if stored == best.checkpoint else f"{best.checkpoint} is gone"
    for checkpoint in _candidates(policy, best, uri, stored):
        try:
            manifest = read_manifest(checkpoint)
            about = {
                "run": folder.name,
                "config": nest(policy.trials[manifest.trial].trial.config),
                "checkpoint": checkpoint,
            }
            path = keep_best(uri, checkpoint, about)
        except CheckpointError as error:
            why = why or str(error)
            continue
        delivery = DeliveredModel(
            path, checkpoint, manifest.trial, manifest.epoch, manifest.metrics, why
        )
        _record(folder, asdict(delivery))
        return delivery
    _record(folder, {"undelivered": why})
    raise CheckpointError(why)


def _record(folder: Path, record: Mapping[str, Any]) -> None:
    (folder / _RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")


def _candidates(policy: RunPolicy, best: BestResult, uri: str, stored: str) -> Iterator[str]:
    """Yield the paths of the run's checkpoints in the order in which they would be delivered."""
    yield stored
    store = CheckpointStore(uri)
    own = store.list_checkpoints(best.trial).items()
    yield from reversed([path for path, manifest in own if manifest.epoch < best.epoch])
    metric = policy.state.metric
    others: dict[str, float] = {}
    for name in policy.trials.keys() - {best.trial}:
        for path, manifest in store.list_checkpoints(name).items():
            others[path] = manifest.metrics.get(metric.name, math.nan)
    yield from sorted(others, key=lambda path: (rank_key(metric.mode, others[path]), path))


def undelivered(folder: Path) -> str:
    """Return why no checkpoint of a run could be delivered; "" if one was, or nobody tried."""
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        return str(record.get("undelivered", ""))
    except (OSError, *DAMAGED):
        return ""


def read_delivery(
    folder: Path, best: BestResult, stored: str | None, places: Places
) -> DeliveredModel | None:
    """Return what was delivered of a run whose best checkpoint is `stored`; None if nothing is."""
    # Records of versions before 0.3 only have the path and the checkpoint.
    of_best = {"trial": best.trial, "epoch": best.epoch, "metrics": {}}
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        delivery = DeliveredModel(**{**of_best, **record})
    except (OSError, *DAMAGED):
        return None
    path, checkpoint = places.now(delivery.path), places.now(delivery.checkpoint)
    delivery = replace(delivery, path=path, checkpoint=checkpoint)
    is_best = delivery.checkpoint == stored
    if not (is_best or delivery.why):
        return None
    if "://" not in delivery.path and read_note(delivery.path) is None:
        return None
    return delivery
