"""Slurm's commands: jobs are submitted, listed and cancelled, each found by its comment.

The comment of a job is JSON: its launch token and the tags that an instance of another cloud has.
The controller forgets a job some minutes after its end (MinJobAge). Its accounting, where there is
any, has begin and end of all: it is the bill. It keeps no comment by default, but the command that
submitted the job.
"""

import getpass
import json
import math
import os
import re
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cloudtune.clock import unix_time
from cloudtune.errors import CloudtuneError
from cloudtune.infra import provider
from cloudtune.infra.slurm.job_script import NOTICE_SECONDS, job_script
from cloudtune.model.events import RefusalKind

_TIMEOUT_SECONDS = 60.0
_TOKEN = "token"  # noqa: S105  its name
_FIELDS = "%i|%T|%S|%e|%r|%k"
_BILL_FIELDS = "JobIDRaw,State,Start,End,SubmitLine"
_PAST = "now-30days"
_RECENTLY = "now-1hours"
# A job may end and be forgotten between two looks: accounting, which has it, is asked this often.
BILL_SECONDS: Final = 60.0
# How long accounting isn't asked again after it didn't answer: most clusters have it, or never.
_NO_BILL_SECONDS = 60.0
_MARK = f'"{provider.RUN_TAG}"'
_RUNNING = ("RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
# Ours of Slurm's (squeue's man page, "JOB STATE CODES"); a job in any other has ended.
_STATES: Final = {
    **dict.fromkeys(("PENDING", "REQUEUED"), provider.QUEUED),
    "CONFIGURING": "pending",
    **dict.fromkeys(_RUNNING, "running"),
}
# What a part of a message means: our word for it, and its kind.
_KINDS: Final[tuple[tuple[str, str, RefusalKind], ...]] = (
    ("InvalidAccount", "invalid account", "denied"),
    ("AccessDenied", "permission denied", "denied"),
    ("AccessDenied", "not permitted", "denied"),
    ("LimitReached", "violates accounting/qos policy", "quota"),
    ("LimitReached", "maxsubmit", "quota"),
    ("Unreachable", "unable to contact", "busy"),
    ("Unreachable", "timed out", "busy"),
    ("Busy", "temporarily unable", "busy"),
)


class SlurmError(CloudtuneError):
    """What a command of Slurm said as it failed; `code` is our word for it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        words = message.lower()
        self.code = next((code for code, part, _ in _KINDS if part in words), "SubmissionFailed")


def ask(*command: str, script: str | None = None) -> str:
    """Return what a command of Slurm prints; times are Unix seconds."""
    return _ask(command, script).stdout


def foretold_start(options: Sequence[str]) -> float:
    """Return when Slurm expects a job to start that were submitted now; nothing is queued.

    Raises:
        SlurmError: it would refuse the job.
    """
    answer = _ask(("sbatch", "--test-only", *options), "#!/bin/sh\n").stderr
    start = re.search(r" to start at (\d+)", answer)
    return float(start.group(1)) if start is not None else unix_time()


def run_step(command: Sequence[str]) -> int:
    """Run a command of Slurm with this process's own input and output; return its exit code."""
    try:
        return subprocess.run(command, env=_environment(), check=False).returncode
    except FileNotFoundError:
        raise SlurmError(f"{command[0]} isn't on this machine") from None


def _environment() -> dict[str, str]:
    """Return this process's environment without what would go into jobs of Ray's and ours."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RAY_", "CLOUDTUNE_", "SLURM_JOB", "SBATCH_"))
    }
    return {**kept, "SLURM_TIME_FORMAT": "%s"}


def _ask(command: Sequence[str], script: str | None) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm.

    Raises:
        SlurmError: it isn't there, failed, or hasn't answered in a minute.
    """
    try:
        return subprocess.run(
            command,
            env=_environment(),
            input=script,
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        lines = [line.strip() for line in error.stderr.splitlines() if line.strip()]
        why = " ".join(lines) or f"exit code {error.returncode}"
        raise SlurmError(f"{command[0]}: {why.removeprefix(f'{command[0]}: error: ')}") from None
    except FileNotFoundError:
        raise SlurmError(f"{command[0]} isn't on this machine") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]}: timed out after {_TIMEOUT_SECONDS:.0f} s") from None


class SlurmCalls(provider.Calls):
    """The jobs of this user on the cluster that this machine submits to."""

    errors: tuple[type[Exception], ...] = (SlurmError,)

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._bill: dict[str, dict[str, Any]] = {}
        self._since = _PAST
        self._asks_all_at = -math.inf
        self._asks_bill_at = -math.inf

    def code(self, error: BaseException) -> str:
        return error.code if isinstance(error, SlurmError) else super().code(error)

    def is_definite(self, error: BaseException) -> bool:
        """Whether nothing was submitted: the controller has answered, and refused."""
        return isinstance(error, SlurmError) and error.code != "Unreachable"

    def refusal_kind(self, code: str) -> RefusalKind:
        return next((kind for word, _, kind in _KINDS if word == code), "unknown")

    def run_instance(self, token: str, tags: Mapping[str, str], request: Mapping[str, Any]) -> str:
        """Submit the job of an instance; asked again with the same token, return the same job."""
        for job in self._jobs():
            if job["comment"].get(_TOKEN) == token:
                return str(job["id"])
        kind = request["kinds"][request["instance_type"]]
        logs = request["logs"]
        Path(logs).mkdir(parents=True, exist_ok=True)
        own = {_TOKEN: token, "kind": request["instance_type"], "logs": logs}
        name = f"cloudtune-{tags[provider.RUN_TAG]}-{tags[provider.INTENT_TAG]}"
        answer = ask(
            "sbatch",
            "--parsable",
            f"--job-name={name}",
            f"--comment={json.dumps({**own, **tags})}",
            *time_options(tags[provider.LEASE_TAG], kind["limit_seconds"]),
            *kind["options"],
            f"--output={logs}/%j.log",
            "--no-requeue",
            script=job_script(request["script"], counted=kind["counted"]),
        )
        return f"slurm-{answer.split(';')[0].strip()}"

    def ours(self, run: str | None = None, *, ended: bool = True) -> list[provider.Instance]:
        instances = [_instance(job) for job in (self._jobs() if ended else self._list())]
        return [it for it in instances if run in {None, it.run} and (ended or it.billing)]

    def _jobs(self) -> list[dict[str, Any]]:
        """Return our jobs; of those that have ended what accounting says, if it does."""
        jobs = {job["id"]: job for job in self._list()}
        live = {name: job for name, job in jobs.items() if job["state"] in _STATES}
        unbilled = self._seen - live.keys() - self._bill.keys()
        now = time.monotonic()
        asks_all = now >= self._asks_all_at
        if (unbilled or asks_all) and now >= self._asks_bill_at:
            try:
                if asks_all:
                    self._bill |= _billed_since(self._since)
                    self._since = _RECENTLY
                    self._asks_all_at = now + BILL_SECONDS
                else:
                    self._bill |= _billed_jobs(unbilled)
            except SlurmError:
                self._asks_bill_at = now + _NO_BILL_SECONDS
        return list({**jobs, **self._bill, **live}.values())

    def _list(self) -> list[dict[str, Any]]:
        """Return the jobs that the controller knows."""
        answer = ask(
            "squeue",
            "--noheader",
            "--states=all",
            f"--user={getpass.getuser()}",
            f"--format={_FIELDS}",
        )
        rows = [line.split("|", 5) for line in answer.splitlines()]
        jobs = [_job(row) for row in rows if _MARK in row[-1]]
        self._seen |= {job["id"] for job in jobs}
        return jobs

    def terminate(self, ids: Sequence[str]) -> None:
        """Cancel jobs; one that has ended is no error."""
        jobs = [name.removeprefix("slurm-") for name in ids]
        if jobs:
            ask("scancel", "--quiet", *jobs)

    def console(self, instance: str) -> str:
        """Return what the job has printed, where this machine shares the folder of its log."""
        logs = next((it["comment"]["logs"] for it in self._jobs() if it["id"] == instance), None)
        path = Path(logs or "") / f"{instance.removeprefix('slurm-')}.log"
        return path.read_text(errors="replace") if path.is_file() else ""


def _billed_since(start: str) -> dict[str, dict[str, Any]]:
    """Return what accounting says of our jobs that have ended since a time, by their ids.

    Raises:
        SlurmError: there is none, or it doesn't answer.
    """
    return _read_bills(f"--user={getpass.getuser()}", f"--starttime={start}")


def _billed_jobs(ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return what accounting says of these jobs, those that have ended, by their ids."""
    numbers = sorted(name.removeprefix("slurm-") for name in ids)
    return _read_bills(f"--jobs={','.join(numbers)}")


def _read_bills(*options: str) -> dict[str, dict[str, Any]]:
    answer = ask(
        "sacct",
        "--allocations",
        "--noheader",
        "--parsable2",
        f"--format={_BILL_FIELDS}",
        *options,
    )
    rows = [line.split("|", 4) for line in answer.splitlines()]
    jobs = [
        _job((number, state, start, end, "", submitted.partition("--comment=")[2]))
        for number, state, start, end, submitted in rows
        if _MARK in submitted and end.isdecimal()
    ]
    return {job["id"]: job for job in jobs}


def time_options(lease: str, limit_seconds: float) -> list[str]:
    """Return the options that end a job with its lease, or as late as its partition allows.

    `lease` is the end, in UTC. One that starts late ends by its first lease all the same: with
    `--deadline` Slurm would remove a job that waits for a minute, or shorten its time needlessly.
    """
    seconds = min(provider.lease_end(lease) - unix_time(), limit_seconds)
    return [time_option(seconds), f"--signal=B:TERM@{NOTICE_SECONDS}"]


def time_option(seconds: float) -> str:
    """Return the option for a job of so many seconds, at least a minute."""
    return f"--time={math.ceil(max(60.0, seconds) / 60)}"


def _job(row: Sequence[str]) -> dict[str, Any]:
    """Return a job of ours; its comment begins with its JSON. Times that aren't there are None."""
    number, state, start, end, reason, comment = row
    return {
        "id": f"slurm-{number}",
        "state": state,
        "start": float(start) if start.isdecimal() else None,
        "end": float(end) if end.isdecimal() else None,
        "reason": reason,
        "comment": json.JSONDecoder().raw_decode(comment)[0],
    }


def _instance(job: Mapping[str, Any]) -> provider.Instance:
    tags = job["comment"]
    state = _STATES.get(job["state"], "terminated")
    is_live = state in ("pending", "running")
    reason = job["state"] if job["reason"] in ("None", "") else f"{job['state']}: {job['reason']}"
    return provider.Instance(
        id=job["id"],
        run=tags[provider.RUN_TAG],
        intent=tags.get(provider.INTENT_TAG, ""),
        lease=tags.get(provider.LEASE_TAG, ""),
        instance_type=tags["kind"],
        state=state,
        launched_at=job["start"] or job["end"] or unix_time(),
        ended_at=None if is_live or state == provider.QUEUED else job["end"],
        reason="" if is_live else f"Slurm's job is {reason}",
        tags=tags,
    )
