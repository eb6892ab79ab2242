"""A run's best model as plain files: `<uri>/best/` has the script's files, and a note.

    <uri>/best/cloudtune.json   the run, the trial, its configuration and metrics; written last
    <uri>/best/state.pt …       the files of the checkpoint, named as by the script

A local folder is written aside and renamed in one step. S3 has no such step, so the note is deleted
first and written last: without it `best/` isn't complete.
"""

import contextlib
import json
import math
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cloudtune.train.checkpoint import Manifest, open_file, read_manifest
from cloudtune.train.saved_files import copy_file
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
# The folder beside a run's ledger for a best checkpoint that couldn't be saved in the storage.
RESCUED: Final = "rescued"
_ASIDE: Final = ".best-"
# Seconds between retries after a failure of the storage: a person waits for the end of a run.
_WAITS = (1.0, 2.0)


def keep_best(uri: str, checkpoint: str, about: Mapping[str, Any]) -> str:
    """Copy a stored checkpoint's files to `uri`/best; return that path.

    The note has `about`, and the trial, the epoch and all metrics of the checkpoint.

    Interrupted at any point, it leaves the old files, nothing, or all new files.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or has a file of the note's name.
        StorageError: the storage failed repeatedly.
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
            if info.base_name.startswith(_ASIDE):  # left by an interrupted copy
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
            fs.open_output_stream(f"{target}/{name}", compression=None) as out,
        ):
            if copy_file(reader, out, like=saved) != saved:
                raise CheckpointError(f"{name} of the checkpoint {checkpoint} is corrupt")
    write_file(fs, f"{target}/{NOTE}", note)


def read_note(folder: str) -> dict[str, Any] | None:
    """Return the note of a local `best/`; None if it is incomplete or not local."""
    try:
        note = json.loads(Path(folder, NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None
