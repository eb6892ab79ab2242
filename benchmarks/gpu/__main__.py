"""Run a step, all of them, or lay two files of results side by side.

    python -m benchmarks.gpu STEP [--out FILE.json]      one step: under ten minutes
    python -m benchmarks.gpu all --out FILE.json         each in a process of its own
    python -m benchmarks.gpu compare OLD.json NEW.json   what differs, with ratios

Without a GPU a step does what it can, and says `unknown: no GPU` of the rest. The exit code is 1
where something came out otherwise than it should. Without an install: PYTHONPATH=.package.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import traceback
from pathlib import Path

from benchmarks.gpu.results import PATH, Clock, Findings, compared, keep, python_path, read, shown

STEPS = {
    "zygote": ("zygote", "measure"),
    "nccl": ("nccl", "measure"),
    "resize": ("resizing", "measure"),
    "mps": ("sharing", "measure"),
    "packing": ("packing", "measure"),
    "profile": ("runs", "profile"),
    "local": ("runs", "local"),
}
# What a step may take.
SECONDS = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=[*STEPS, "all", "compare"])
    parser.add_argument("files", nargs="*", type=Path, help="for compare: the older, the newer")
    parser.add_argument("--out", type=Path, help="the file of results; other steps in it stay")
    given = parser.parse_args()
    if given.step == "compare":
        if len(given.files) != 2:
            parser.error("compare takes two files, the older one first")
        print(compared(*(read(path) for path in given.files)))
        return 0
    if given.files:
        parser.error(f"{given.step} takes no file; write --out FILE")
    return _all(given.out) if given.step == "all" else _one(given.step, given.out)


def _one(step: str, out: Path | None) -> int:
    out = None if out is None else out.absolute()
    clock = Clock()
    module, function = STEPS[step]
    print(f"{step}:", flush=True)
    try:
        findings = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)()
    except Exception as error:  # noqa: BLE001  the results say so, and the next steps are run
        traceback.print_exc()
        findings = Findings(failed={step: f"{type(error).__name__}: {error}"[:800]})
    print(shown(findings, clock.seconds), flush=True)
    if step == "packing":
        from benchmarks.gpu.packing import table  # noqa: PLC0415  not every step needs torch

        print(table(findings.figures))
    if out is not None:
        keep(out, step, findings, clock.seconds)
    return 1 if findings.failed else 0


def _all(out: Path | None) -> int:
    """Run each step; one that breaks or takes too long doesn't keep the others from it."""
    failed = []
    for step in STEPS:
        words = [sys.executable, "-m", "benchmarks.gpu", step]
        words += [] if out is None else ["--out", str(out)]
        environment = {**os.environ, PATH: python_path()}
        with subprocess.Popen(words, env=environment) as process:
            try:
                code = process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.terminate()
                code = -1
        if code:
            failed.append(step)
    print(f"not as it should be: {', '.join(failed)}" if failed else "all as it should be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
