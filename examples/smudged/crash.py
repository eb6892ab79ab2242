"""Kill the controller of a run in the middle, see what still bills, and go on with it.

    python crash.py              # `make demo-crash`

It starts `cloudtune run`, waits for the second stage, and kills that process with SIGKILL: nothing
of it can tidy up. Then come the commands that a person would type.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import cloudtune

EXPERIMENT = Path(__file__).with_name("experiment.yaml")
CLOUDTUNE = (sys.executable, "-m", "cloudtune")
SECOND_STAGE = 4
"""The run is killed when some trial has trained this epoch: the second stage goes on."""
DEADLINE = "5m"
"""Longer than the demo's: nothing trains while nothing controls."""


def ours(name: str | None = None) -> str | None:
    """Return the last run of this machine; None where there is none but the one named."""
    try:
        found = cloudtune.load_run().name
    except cloudtune.CloudtuneError:
        return None
    return None if found == name else found


def show(*arguments: str) -> int:
    """Run cloudtune as a person would; return its exit code."""
    print(f"\n$ cloudtune {' '.join(arguments)}", flush=True)
    return subprocess.run([*CLOUDTUNE, *arguments], check=False).returncode


def alive() -> list[dict[str, Any]]:
    """Return the instances that still bill."""
    status = subprocess.run(
        [*CLOUDTUNE, "status", "-o", "json"], check=True, stdout=subprocess.PIPE
    )
    return list(json.loads(status.stdout)["instances"])


def twice(result: cloudtune.Result) -> int:
    """Return how many epochs of a run were trained more than once, by its ledger."""
    trained = Counter((epoch.trial, epoch.number) for epoch in result.report.timeline.epochs)
    return sum(count > 1 for count in trained.values())


def killed_in_the_middle() -> str:
    """Start a run, kill its controller in the second stage, and return the run's name."""
    before = ours()
    print(f"$ cloudtune run {EXPERIMENT} --deadline {DEADLINE}", flush=True)
    command = [*CLOUDTUNE, "run", str(EXPERIMENT), "--deadline", DEADLINE]
    controller = subprocess.Popen(command)
    while controller.poll() is None:
        time.sleep(2)
        name = ours(before)
        if name is None:
            continue
        history = cloudtune.load_run(name).history
        if len(history) and history["epoch"].max() >= SECOND_STAGE:
            print(f"\n$ kill -9 {controller.pid}", flush=True)
            os.kill(controller.pid, signal.SIGKILL)
            controller.wait()
            return name
    raise SystemExit(f"the run ended by itself, with {controller.returncode}")


def main() -> int:
    """Show it; return 0 if everything was returned and nothing was trained twice."""
    name = killed_in_the_middle()
    show("status")
    trained = len(cloudtune.load_run(name).history)
    code = show("resume", name)
    result, left = cloudtune.load_run(name), alive()
    lost = result.cost.by_category["lost"]
    print(f"\nKilled after {trained} epochs; the run ended with exit code {code}.")
    print(f"  instances left            {len(left)}")
    planned = sum(result.report.job.plan.launches.values())
    print(f"  instances rented          {len(result.timeline)}, planned {planned}")
    print(
        f"  bill                      ${result.cost.dollars:.2f}, plan ${result.plan.dollars:.2f}"
    )
    print(f"  epochs trained            {len(result.history)}, of which twice {twice(result)}")
    print(f"  paid for lost epochs      ${lost:.3f}")
    return 0 if code == 0 and not left and not twice(result) else 1


if __name__ == "__main__":
    sys.exit(main())
