"""Profiles on disk: versioned JSON, keyed by script, instance type and width.

A profile is looked for in this order: the file that was named, the store of this machine
(CLOUDTUNE_HOME/profiles), `profile.json` beside the experiment. One that was measured with another
version of the script isn't used.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from cloudtune.codec import decode, encode
from cloudtune.errors import UsageError
from cloudtune.scaling import ScalingProfile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

VERSION = 1
BESIDE = "profile.json"


def script_hash(script: Path) -> str:
    """Return the SHA-256 of a training script: what its profiles are keyed by."""
    return hashlib.sha256(script.read_bytes()).hexdigest()


def write(path: Path, profiles: Iterable[ScalingProfile]) -> None:
    """Write profiles to a file, in one step."""
    data = {"cloudtune_profile": VERSION, "profiles": [encode(profile) for profile in profiles]}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


def read(path: Path) -> list[ScalingProfile]:
    """Return the profiles of a file.

    Raises:
        UsageError: there is no such file, or it holds no profiles of a version that we read.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such profile; `cloudtune profile` makes one") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a profile: {error}") from None
    if not isinstance(data, dict) or data.get("cloudtune_profile") != VERSION:
        raise UsageError(f"{path}: not a profile of version {VERSION}; measure it again")
    try:
        return [decode(ScalingProfile, one) for one in data["profiles"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: a damaged profile ({error}); measure it again") from None


def stored_path(store: Path, script: str, instance_type: str) -> Path:
    """Return where the store keeps a profile."""
    return store / f"{script[:16]}-{instance_type}.json"


def find(
    script: str,
    instance_types: Sequence[str],
    *,
    given: Path | None,
    store: Path,
    beside: Path,
) -> list[ScalingProfile]:
    """Return the profiles there are for the wanted instance types, the first found of each.

    Raises:
        UsageError: a file that was named can't be used.
    """
    if given is not None:
        return _for_types(read(given), instance_types, script, given)
    found: dict[str, ScalingProfile] = {}
    paths = [stored_path(store, script, name) for name in instance_types]
    for path in [*paths, beside / BESIDE]:
        if path.exists():
            for profile in read(path):
                if profile.script_hash == script and profile.instance_type in instance_types:
                    found.setdefault(profile.instance_type, profile)
    return [found[name] for name in instance_types if name in found]


def _for_types(
    profiles: Iterable[ScalingProfile], instance_types: Sequence[str], script: str, path: Path
) -> list[ScalingProfile]:
    fitting = [p for p in profiles if p.instance_type in instance_types]
    if not fitting:
        raise UsageError(f"{path}: has no profile for {', '.join(instance_types)}")
    if any(profile.script_hash != script for profile in fitting):
        raise UsageError(
            f"{path}: was measured with another version of the training script; "
            "run `cloudtune profile` again"
        )
    return fitting
