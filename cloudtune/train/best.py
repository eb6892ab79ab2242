"""A run's best model as plain files: `<uri>/best/` has what the script wrote, and a note of it.

    <uri>/best/cloudtune.json   the run, the trial, its configuration and metrics; written last
    <uri>/best/state.pt …       the files of the checkpoint, under the names that the script gave

In a local folder the whole of it is written aside and takes its name in one step. On S3, which has
no such step, the note goes first and comes last: without it `best/` isn't whole.
"""

import contextlib
import json
import math
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cloudtune.train.checkpoint import Manifest, copy_file, open_file, read_manifest
from cloudtune.train.storage import (
    CheckpointError,
    Patience,
    delete,
    entries,
    filesystem,
    is_local,
    write_file,
)

BEST: Final = "best"
NOTE: Final = "cloudtune.json"
# The folder beside a run's ledger for the best checkpoint that the storage didn't take.
RESCUED: Final = "rescued"
_ASIDE: Final = ".best-"
# Seconds until a storage that failed is asked again: a person waits for the end of a run.
_WAITS = (1.0, 2.0)


def keep_best(uri: str, checkpoint: str, about: Mapping[str, Any]) -> str:
    """Copy a stored checkpoint's files to `uri`/best; return that path.

    The note has what `about` says, and the trial, the epoch and all metrics of the checkpoint.

    Interrupted at any point, it leaves what stood there before, nothing, or the whole of the new.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or has a file of the note's name.
        StorageError: the storage failed again and again.
    """
    manifest = read_manifest(checkpoint)
    if NOTE in manifest.files:
        raise CheckpointError(f"the script saves a file {NOTE}, which is to say what best/ holds")
    metrics = {k: v if math.isfinite(v) else str(v) for k, v in manifest.metrics.items()}
    note = {"trial": manifest.trial, "epoch": manifest.epoch, "metrics": metrics}
    text = json.dumps({**note, **about}, indent=1, allow_nan=False).encode()
    return Patience(uri, _WAITS).insist(lambda: _keep(uri, checkpoint, manifest, text))


def _keep(uri: str, checkpoint: str, manifest: Manifest, note: bytes) -> str:
    fs, root = filesystem(uri)
    final = f"{root}/{BEST}"
    if is_local(fs):
        for info in entries(fs, root):
            if info.base_name.startswith(_ASIDE):  # of one that was interrupted
                delete(fs, info)
        aside = f"{root}/{_ASIDE}{uuid.uuid4().hex[:8]}"
        try:
            _write(fs, aside, checkpoint, manifest, note)
            old = Path(f"{aside}-old")
            with contextlib.suppress(FileNotFoundError):
                Path(final).rename(old)
            Path(aside).rename(final)
            if old.exists():
                fs.delete_dir(str(old))
        finally:
            with contextlib.suppress(OSError):
                fs.delete_dir(aside)
    else:
        with contextlib.suppress(FileNotFoundError):
            fs.delete_file(f"{final}/{NOTE}")
        for info in entries(fs, final):
            delete(fs, info)
        _write(fs, final, checkpoint, manifest, note)
    return f"{uri.rstrip('/')}/{BEST}"


def _write(fs: Any, target: str, checkpoint: str, manifest: Manifest, note: bytes) -> None:
    for name, saved in manifest.files.items():
        if is_local(fs):
            fs.create_dir(f"{target}/{name}".rpartition("/")[0], recursive=True)
        with (
            open_file(checkpoint, manifest, name) as reader,
            fs.open_output_stream(f"{target}/{name}") as out,
        ):
            if copy_file(reader, out) != saved:
                raise CheckpointError(f"{name} of the checkpoint {checkpoint} is corrupt")
    write_file(fs, f"{target}/{NOTE}", note)


def note_of(folder: str) -> dict[str, Any] | None:
    """Return what a local `best/` says of itself; None where it isn't whole, or elsewhere."""
    try:
        note = json.loads(Path(folder, NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None
