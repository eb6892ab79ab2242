"""The results of the steps: one small JSON file, and the difference between two of them.

    {"version": 1, "machine": {…}, "steps": {STEP: {
        "at": …, "seconds": …, "machine": {…},
        "figures": {NAME: number}, "facts": {NAME: text or truth},
        "unknown": {NAME: why}, "failed": {NAME: error}}}}

A figure's name says its unit (`_s`, `_mib`, `_per_s`, `_share`, `_ratio`), so that two files can be
laid side by side. What couldn't be measured is `unknown`, with the reason; what should have come
out otherwise is `failed`.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cloudtune.infra.node.gpus import gpus
from cloudtune.infra.node.mps_daemon import CONTROL
from cloudtune.infra.node.this_machine import cores

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VERSION = 1
PATH = "PYTHONPATH"
NO_GPU = "no GPU"
ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "benchmarks/gpu/train.py"


class _Printed(dict[str, float]):
    """Figures that are printed as they come: a step may be cut off."""

    def __setitem__(self, name: str, value: float) -> None:
        super().__setitem__(name, value)
        print(f"  {name} {value:.5g}", flush=True)


@dataclass
class Findings:
    """What a step measured."""

    figures: dict[str, float] = field(default_factory=_Printed)
    facts: dict[str, str | bool] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def expect(self, name: str, *, so: bool, message: str = "") -> None:
        """Note a fact, and that the step has failed where it isn't so."""
        self.facts[name] = so
        if not so:
            self.failed[name] = message or "not so"


def machine() -> dict[str, Any]:
    """Return what is to be known of this machine beside any figure."""
    devices = gpus()
    nccl: Any = torch.cuda.nccl
    joined = ".".join(map(str, nccl.version())) if torch.cuda.is_available() else ""
    return {
        "gpus": [gpu.name for gpu in devices],
        "memory_mib": [gpu.memory_mib for gpu in devices],
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "mps": bool(_output("which", CONTROL)),
        "cores": cores(),
        "load": round(
            os.getloadavg()[0], 1
        ),  # of other work as well: with much, seconds say little
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "nccl": joined,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "commit": _output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"),
    }


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def keep(path: Path, step: str, findings: Findings, seconds: float) -> None:
    """Write a step's results into a file, in place of its earlier ones; others stay."""
    fresh: dict[str, Any] = {"version": VERSION, "steps": {}}
    results = read(path) if path.exists() else fresh
    at = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    results["machine"] = here = machine()
    results["steps"][step] = {
        "at": at,
        "seconds": round(seconds, 1),
        "machine": here,
        "figures": {name: float(f"{value:.5g}") for name, value in findings.figures.items()},
        "facts": findings.facts,
        "unknown": findings.unknown,
        "failed": findings.failed,
    }
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(results, indent=1) + "\n")
    draft.replace(path)


def read(path: Path) -> dict[str, Any]:
    """Return the results in a file.

    Raises:
        SystemExit: it has none that can be read; the message says so.
    """
    try:
        results: dict[str, Any] = json.loads(path.read_text())
        version = results["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path} holds no results of benchmarks.gpu ({error})") from None
    if version != VERSION:
        raise SystemExit(f"{path} has version {version}; this program reads {VERSION}")
    return results


def shown(findings: Findings, seconds: float) -> str:
    """Return a step's results as text."""
    width = max(
        map(len, (*findings.figures, *findings.facts, *findings.unknown, *findings.failed)),
        default=0,
    )
    lines = [f"  {name:<{width}}  {value:.5g}" for name, value in findings.figures.items()]
    lines += [f"  {name:<{width}}  {value}" for name, value in findings.facts.items()]
    lines += [f"  {name:<{width}}  unknown: {why}" for name, why in findings.unknown.items()]
    lines += [f"  {name:<{width}}  FAILED: {why}" for name, why in findings.failed.items()]
    return "\n".join([*lines, f"  ({seconds:.0f} s)"])


# ---- two files -----------------------------------------------------------------------------


def compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return a Markdown table of what differs between two files: figures with their ratio."""
    machines = [_machine_line(results) for results in (old, new)]
    lines = [f"before: {machines[0]}", f"now:    {machines[1]}", ""]
    lines += ["| step | what | before | now | ratio |", "|---|---|---:|---:|---:|"]
    for step, name, one, other in _pairs(old["steps"], new["steps"]):
        lines.append(f"| {step} | {name} | {_cell(one)} | {_cell(other)} | {_ratio(one, other)} |")
    return "\n".join(lines)


def _machine_line(results: Mapping[str, Any]) -> str:
    result = results.get("machine", {})
    names = ", ".join(result.get("gpus", [])) or NO_GPU
    cores_of, commit = result.get("cores", "?"), result.get("commit", "?")
    return f"{names}, {cores_of} cores, torch {result.get('torch')}, commit {commit}"


def _pairs(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, str, object, object]]:
    """Give what stands in both or in one; of facts and reasons, only those that differ."""
    for step in dict.fromkeys((*old, *new)):
        one, other = _flat(old.get(step, {})), _flat(new.get(step, {}))
        for name in dict.fromkeys((*one, *other)):
            before, now = one.get(name), other.get(name)
            if isinstance(before, float) or isinstance(now, float) or before != now:
                yield step, name, before, now


def _flat(step: Mapping[str, Any]) -> dict[str, object]:
    unknown = {name: f"unknown: {why}" for name, why in step.get("unknown", {}).items()}
    failed = {name: f"FAILED: {why}" for name, why in step.get("failed", {}).items()}
    return {**step.get("figures", {}), **step.get("facts", {}), **unknown, **failed}


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "/")


def _ratio(before: object, now: object) -> str:
    if isinstance(before, float) and isinstance(now, float) and before:
        return f"{now / before:.2f}"
    return ""


def python_path() -> str:
    """Return a PYTHONPATH with cloudtune and this package in it, in whatever folder."""
    folders = [
        str(Path(folder).absolute()) for folder in os.environ.get(PATH, "").split(":") if folder
    ]
    return ":".join(dict.fromkeys((str(ROOT / ".package"), str(ROOT), *folders)))


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began
