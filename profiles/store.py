"""Profiles on disk: versioned JSON, keyed by script, instance type and width.

Profiles are looked up in this order: a named one (a bundled profile or a file), the store of this
machine (CLOUDTUNE_HOME/profiles), `profile.json` beside the experiment. A profile whose `Identity`
differs from what runs now isn't used; published figures belong to no script.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from cloudtune.errors import UsageError
from cloudtune.model.catalog import InstanceType
from cloudtune.model.scaling import EMULATED, Identity, Measurement, ScalingProfile
from cloudtune.model.serialization import decode, encode
from cloudtune.profiles import bundled

VERSION = 1
BESIDE = "profile.json"


def script_hash(script: Path) -> str:
    """Return the SHA-256 of a training script, the key of its profiles."""
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
        UsageError: there is no such file, it has no profiles of a known version, or impossible
            figures, such as an epoch of 0 seconds.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such profile; `cloudtune profile` makes one") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a profile: {error}") from None
    if not isinstance(data, dict) or data.get("cloudtune_profile") != VERSION:
        raise UsageError(f"{path}: not a profile of version {VERSION}; measure it again")
    try:
        profiles = [decode(ScalingProfile, _with_provenance(one)) for one in data["profiles"]]
        mistakes = [mistake for profile in profiles for mistake in _impossible(profile)]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: a damaged profile ({error}); measure it again") from None
    if mistakes:
        raise UsageError(f"{path}: {'; '.join(mistakes)}; measure it again (`cloudtune profile`)")
    return profiles


def _with_provenance(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a profile's JSON with its provenance, which earlier versions didn't write."""
    if "provenance" in data or "emulated cloud" not in data["source"]:
        return data
    return {**data, "provenance": {"origin": EMULATED}}


def age(measured_at: str, today: str) -> int | None:
    """Return the age of a profile in days on a date, YYYY-MM-DD; None if it has no date."""
    try:
        days = date.fromisoformat(today) - date.fromisoformat(measured_at[:10])
    except ValueError:
        return None
    return max(0, days.days)


def stored_path(store: Path, key: str, instance_type: str) -> Path:
    """Return the path of a profile in the store; `key` is the digest of its identity."""
    return store / f"{key[:16]}-{instance_type}.json"


def keep(store: Path, profile: ScalingProfile) -> Path:
    """Save a profile in the store; return its path."""
    key = profile.script_hash if profile.identity is None else _digest(profile.identity)
    path = stored_path(store, key, profile.instance_type)
    write(path, [profile])
    return path


def _digest(identity: Identity) -> str:
    return hashlib.sha256(identity.key.encode()).hexdigest()


def changes(profile: ScalingProfile, script: str, identity: Identity | None) -> list[str]:
    """Return the changes since a profile was measured that are likely to change the speed.

    `script` is the present hash of the script, the only identity of profiles before 0.3.
    """
    if profile.identity is not None and identity is not None:
        return list(profile.identity.changes(identity))
    return [] if profile.script_hash in {script, ""} else ["the script changed"]


def resolve(
    given: str | Path | None,
    script: str,
    instance_types: Sequence[InstanceType],
    *,
    store: Path,
    beside: Path,
    identity: Identity | None = None,
    note: Callable[[str], object] = str,
) -> list[ScalingProfile]:
    """Return the existing profiles for the wanted instance types, at most one of each.

    `given` is a file or names a bundled profile ("resnet50-cifar10@v100"), which is used for every
    type with its GPU, and derived for comparable ones. `script` and `identity` are what runs now;
    `note` is called with a line on each profile of another version of the script.

    Raises:
        UsageError: there is no such bundled profile, it fits none of the types, or a named file
            can't be used.
    """
    name = str(given)
    # A known name, or one of that form which isn't a file.
    is_bundled = name in bundled.names() or ("@" in name and not Path(name).exists())
    names = [machine.name for machine in instance_types]
    if given is None:
        return _find_profiles(script, names, store, beside, identity=identity, note=note)
    if not is_bundled:
        return _for_types(read(Path(given)), names, script, identity, Path(given))
    bundled_profiles = [bundled.find(name, machine) for machine in instance_types]
    if instance_types and not any(bundled_profiles):
        bundled.load(name, instance_types[0])
    return [profile for profile in bundled_profiles if profile is not None]


def _find_profiles(
    script: str,
    instance_types: Sequence[str],
    store: Path,
    beside: Path,
    *,
    identity: Identity | None,
    note: Callable[[str], object],
) -> list[ScalingProfile]:
    """Return the first profile of each instance type in the store, or beside the experiment."""
    keys = [script] if identity is None else [_digest(identity), script]
    paths = [stored_path(store, key, name) for name in instance_types for key in keys]
    fitting: dict[str, ScalingProfile] = {}
    others: list[ScalingProfile] = []
    for path in [*paths, beside / BESIDE]:
        for profile in read(path) if path.exists() else ():
            if profile.instance_type not in instance_types or not profile.script_hash:
                continue
            if changes(profile, script, identity):
                others.append(profile)
            else:
                fitting.setdefault(profile.instance_type, profile)
    for name in instance_types:
        if name in fitting and identity is not None:
            before = fitting[name].identity
            if before and before.cloudtune and before.cloudtune != identity.cloudtune != "":
                note(
                    f"the profile of {name} was measured by cloudtune {before.cloudtune}, and this "
                    f"is {identity.cloudtune}: not likely to change speed"
                )
        elif identity is not None:
            of_type = [profile for profile in others if profile.instance_type == name]
            _note_others([*of_type, *_of_script(store, name, identity)], identity, note)
    return [fitting[name] for name in instance_types if name in fitting]


def _of_script(store: Path, instance_type: str, identity: Identity) -> Iterator[ScalingProfile]:
    """Yield the store's profiles of any version of a script on an instance type."""
    for path in store.glob(f"*-{instance_type}.json"):
        try:
            profiles = read(path)
        except UsageError:
            continue
        yield from (p for p in profiles if p.identity and p.identity.script == identity.script)


def _note_others(
    profiles: Iterable[ScalingProfile], identity: Identity, note: Callable[[str], object]
) -> None:
    identified = [profile for profile in profiles if profile.identity is not None]
    if not identified:
        return
    last = max(identified, key=lambda profile: profile.measured_at)
    assert last.identity is not None
    note(
        f"the profile of {last.instance_type} of {last.measured_at[:10]} is not used: "
        f"{'; '.join(last.identity.changes(identity))} (likely to change speed)"
    )


def _for_types(
    profiles: Iterable[ScalingProfile],
    instance_types: Sequence[str],
    script: str,
    identity: Identity | None,
    path: Path,
) -> list[ScalingProfile]:
    fitting = [p for p in profiles if p.instance_type in instance_types]
    if not fitting:
        raise UsageError(f"{path}: has no profile for {', '.join(instance_types)}")
    for profile in fitting:
        if changed := changes(profile, script, identity):
            raise UsageError(
                f"{path}: was measured with another version of the training script: "
                f"{'; '.join(changed)}; run `cloudtune profile` again"
            )
    return fitting


def _impossible(profile: ScalingProfile) -> Iterator[str]:
    """Yield the impossible figures of a profile, by instance type and field."""
    where = f"the profile of {profile.instance_type}"
    if not profile.epoch:
        yield f"{where}: `epoch` is empty: no width was measured"
    for name, error in (("error", profile.error), ("gpu_error", profile.gpu_error)):
        if not _finite(error):
            yield f"{where}: `{name}` is {error:g}, and must be 0 or more"
    for width, seconds in profile.epoch.items():
        if not (math.isfinite(width) and width > 0):
            yield f"{where}: `epoch` has a width of {width:g}, and must have widths above 0"
        yield from _impossible_seconds(f"{where}: `epoch` at width {width:g}", seconds)
        if seconds.mean == 0:
            yield f"{where}: `epoch` at width {width:g} has a mean of 0, and must be above 0"
    for width, mib in profile.memory.items():
        if not _finite(mib):
            yield f"{where}: `memory` at width {width:g} is {mib:g}, and must be 0 or more"
    for name in ("launch", "boot", "start", "resize", "release"):
        yield from _impossible_seconds(f"{where}: `{name}`", getattr(profile, name))


def _impossible_seconds(where: str, seconds: Measurement) -> Iterator[str]:
    for name, value in (("mean", seconds.mean), ("deviation", seconds.sd)):
        if not _finite(value):
            yield f"{where} has a {name} of {value:g}, and must be finite and not below 0"


def _finite(value: float) -> bool:
    return math.isfinite(value) and value >= 0
