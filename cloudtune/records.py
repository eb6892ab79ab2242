"""What Ray's autoscaler, its provider and EC2 each say of a run's instances, side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def cloud_records(folder: Path) -> dict[str, Any]:
    """Return the three records of a run's folder; an absent one is empty.

    `autoscaler_events`: what Ray's autoscaler decided, in its own words. `provider_calls`: what
    it then asked of EC2 through our node provider. `instances`: what EC2 says there was.
    """
    instances = folder / "instances.json"
    return {
        "autoscaler_events": _json_lines(folder / "event_AUTOSCALER.log"),
        "provider_calls": _json_lines(folder / "provider.jsonl"),
        "instances": json.loads(instances.read_text()) if instances.exists() else [],
    }


def _json_lines(path: Path) -> list[Any]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
