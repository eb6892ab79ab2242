"""The EC2 that runs on this machine: find it, start it, stop it; `python -m` runs it.

An emulator belongs to a home folder:

    emulator.json         its address, process and secrets; exists while it runs
    emulator.lock         held while one is started or stopped
    emulator.log
    instances/<id>/       a machine's HOME: user-data, console.log, process.json, tmp

Cheap to import: only the emulator's own process loads moto.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtune.errors import CloudtuneError, UsageError, need
from cloudtune.file_locks import lock_file
from cloudtune.infra.emulator import early
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.node import this_machine as local
from cloudtune.private_files import close, keep_private

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.infra.emulator.faults import Fault
    from cloudtune.infra.emulator.rules import AccessRules

LONGEST_START_S = 60.0
LONGEST_END_S = 30.0
_LOCK = "emulator.lock"
FAULTS_VARIABLE = "CLOUDTUNE_EMULATOR_FAULTS"
_POLL_S = 0.05
# Settings of the caller that must not reach the emulator: a missing profile breaks botocore, and
# with a machine's mark the emulator would be killed as one of that machine's processes.
_KEPT_OUT = ("AWS_PROFILE", "AWS_ENDPOINT_URL", "CLOUDTUNE_MACHINE")
_LAUNCH = 'umask 077; "$@" >>"$CLOUDTUNE_EMULATOR_LOG" 2>&1 </dev/null & echo $!'


@dataclass(frozen=True)
class Emulator:
    """A running emulator."""

    access: Access
    pid: int
    home: Path


def ensure_emulator(
    home: Path, boot_seconds: float = 4.0, *, program: Sequence[str] = ()
) -> Emulator:
    """Return the emulator of `home`, started when none runs; simultaneous callers get the same.

    `boot_seconds` (from launch to running) and `program` (a command that takes the options of
    `main`, in place of this module) count only for an emulator that is started here, and so do the
    faults of the file that CLOUDTUNE_EMULATOR_FAULTS names.

    Raises:
        UsageError: that file holds no faults, or moto is not installed.
        CloudtuneError: it doesn't come up; the message carries the end of its log.
    """
    need("emulator", "an EC2 on this machine", "moto", "flask", "flask_cors")
    home = home.absolute()
    home.mkdir(parents=True, exist_ok=True)
    close(home)
    with lock_file(home / _LOCK):
        emulator = find_emulator(home)
        if emulator is None:
            # One may be just ending: two would fight over the machines.
            _wait_until_gone(home, _read_state(home))
            emulator = _start(home, program, ["--boot-seconds", str(boot_seconds)])
        return emulator


def find_emulator(home: Path) -> Emulator | None:
    """Return the emulator of `home` if it runs, answers and isn't about to end.

    Raises:
        UsageError: an emulator of another version runs there, with other control commands.
    """
    state = _read_state(home)
    if state is None or not _is_alive(state):
        return None
    access = Access.of(state)
    try:
        answer = EmulatorControl(access).ping()
    except UsageError:
        text = f"{home}: another version's emulator runs there; it ends two minutes after its runs"
        raise UsageError(text) from None
    except CloudtuneError:
        return None
    if answer["pid"] != state["pid"] or answer["closing"]:
        return None
    return Emulator(access, state["pid"], home.absolute())


def stop_emulator(home: Path, *, only_if_idle: bool) -> bool:
    """End the emulator of `home`; return False, without ending it, if it must be idle and isn't.

    Idle means that there is no live instance. The emulator itself decides, so that no launch can
    come in between. Returns when its process is gone; True also if there was none.
    """
    if not home.exists():
        return True
    with lock_file(home / _LOCK):
        state = _read_state(home)
        if state is not None and _is_alive(state):
            try:
                EmulatorControl(Access.of(state)).shut_down(only_if_idle=only_if_idle)
            except UsageError:
                return False
            except CloudtuneError:
                pass  # it is ending by itself
            _wait_until_gone(home, state)
        return True


def main(arguments: Sequence[str] | None = None, rules: AccessRules | None = None) -> None:
    """Serve an emulator in the foreground until a stop request or idleness."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--home", type=Path, required=True, help="its folder; made when missing")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--boot-seconds", type=float, default=4.0, help="from launch to running")
    parser.add_argument("--idle-exit", type=float, default=120.0, help="seconds")
    options = parser.parse_args(arguments)
    home = options.home.absolute()
    state = _read_state(home)
    if state is not None and _is_alive(state):
        raise UsageError(f"an emulator already runs in {home}; stop it, or use another --home")
    keep_private()
    home.mkdir(parents=True, exist_ok=True)
    close(home)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("werkzeug").setLevel(logging.WARNING)

    from cloudtune.infra.emulator.rules import AccessRules  # noqa: PLC0415 - with it comes all of psutil
    from cloudtune.infra.emulator.server import serve  # noqa: PLC0415 - loads moto: a second

    serve(
        home,
        options.port,
        options.boot_seconds,
        options.idle_exit,
        faults=_faults_at_start(),
        rules=AccessRules() if rules is None else rules,
    )


def serve_when_told() -> None:
    """Import, wait for an order on stdin, and let a child of init serve; nothing without an order.

    The other side is `early`.
    """
    from cloudtune.infra.emulator import server  # noqa: PLC0415 - loads moto: two seconds

    assert server
    order = sys.stdin.read()
    if not order:
        return
    options, environment, log = json.loads(order)
    pid = os.fork()
    if pid:
        os.write(1, str(pid).encode())
        os._exit(0)  # without the interpreter's slow shutdown: it is waited for
    os.setsid()
    os.umask(0o077)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environment)
    main(options)


def find_orphans(home: Path, *, end: bool) -> list[str]:
    """Return the machines of `home` that survived their emulator; `end` ends them."""
    instances = home / "instances"
    if not instances.is_dir():
        return []
    from cloudtune.infra.emulator import machine_process  # noqa: PLC0415 - psutil: 30 ms

    with lock_file(home / _LOCK):
        state = _read_state(home)
        if state is not None and _is_alive(state):
            return []
        left = machine_process.left_running(instances)
        if left and end:
            machine_process.end_leftovers(instances)
        return left


def _faults_at_start() -> list[Fault]:
    """Return the faults of the file that the environment names, if any.

    Raises:
        UsageError: there is no such file, or it has something else.
    """
    file = os.environ.get(FAULTS_VARIABLE)
    if not file:
        return []
    from cloudtune.infra.emulator.fault_files import read_faults  # noqa: PLC0415 - rarely needed

    try:
        return read_faults(Path(file))
    except UsageError as error:
        raise UsageError(f"{FAULTS_VARIABLE}: {error}") from None


def _start(home: Path, program: Sequence[str], options: Sequence[str]) -> Emulator:
    _faults_at_start()  # a mistake in them is reported here, not in a log
    (home / "emulator.json").unlink(missing_ok=True)
    pid = _launch(home, program, [*options, "--home", str(home)])
    deadline = time.monotonic() + LONGEST_START_S
    while time.monotonic() < deadline and _runs(pid):
        emulator = find_emulator(home)
        if emulator is not None:
            return emulator
        time.sleep(_POLL_S)
    log = home / "emulator.log"
    end = "\n".join(log.read_text().splitlines()[-15:]) if log.exists() else "(empty)"
    raise CloudtuneError(
        f"the EC2 emulator died at start, or took over {LONGEST_START_S:.0f} s. The end of its "
        f"log, {log}:\n{end}"
    )


def _launch(home: Path, program: Sequence[str], options: Sequence[str]) -> int:
    """Start the emulator as a child of init, so that no caller has to reap it; return its pid."""
    log = str(home / "emulator.log")
    environment = environment_here()
    started = None if program else early.take()
    if started is not None and (pid := started.begin(options, environment, log)):
        return pid
    words = program or (sys.executable, "-m", "cloudtune.infra.emulator.service")
    printed = subprocess.run(
        ["/bin/sh", "-c", _LAUNCH, "sh", *words, *options],
        check=True,
        env={**environment, "CLOUDTUNE_EMULATOR_LOG": log},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ).stdout
    return int(printed)


def environment_here() -> dict[str, str]:
    """Return the environment of an emulator that this process starts."""
    environment = {name: value for name, value in os.environ.items() if name not in _KEPT_OUT}
    # A user's own machine, as an instance, gets them back.
    return environment | local.kept_variables(name for name in _KEPT_OUT if name.startswith("AWS_"))


def _read_state(home: Path) -> dict[str, Any] | None:
    """Return the emulator's saved state; None if there is none, or a damaged one."""
    try:
        state = json.loads((home / "emulator.json").read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    whole = isinstance(state, dict) and {"pid", "create_time", "endpoint"} <= state.keys()
    return state if whole and isinstance(state["pid"], int) and state["pid"] > 1 else None


def _is_alive(state: dict[str, Any]) -> bool:
    from cloudtune.infra.processes import same_process  # noqa: PLC0415 - psutil: 30 ms

    return same_process(state["pid"], state["create_time"])


def _runs(pid: int) -> bool:
    import psutil  # noqa: PLC0415 - 30 ms

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _wait_until_gone(home: Path, state: dict[str, Any] | None) -> None:
    """Wait for the process in the state to end: it removes its state before that."""
    deadline = time.monotonic() + LONGEST_END_S
    while state is not None and _is_alive(state):
        if time.monotonic() > deadline:
            raise CloudtuneError(
                f"the EC2 emulator (pid {state['pid']}) neither answers nor ends; see "
                f"{home / 'emulator.log'}, and end that process by hand"
            )
        time.sleep(_POLL_S)


if __name__ == "__main__":
    if sys.argv[1:] == [early.OPTION]:
        serve_when_told()
    else:
        main()
