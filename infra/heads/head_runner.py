"""The program of a head: it runs its order in a separate process, and uploads the growing record.

Started by the head's user data (`launch.user_data`), with the order in the run's storage.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from cloudtune.clock import unix_time
from cloudtune.errors import CloudtuneError
from cloudtune.infra.heads.bundle import Order, unpack
from cloudtune.infra.heads.sealed import KEY_VARIABLE, unseal
from cloudtune.infra.heads.store import (
    FOLDER,
    ORDER,
    PARCEL,
    STOP,
    VARIABLES,
    HeadStore,
    Mirror,
    State,
    fetch,
)
from cloudtune.infra.node.boot import metadata, say
from cloudtune.infra.node.lease import LEASE_MINUTES, RENEW_SECONDS, Lease
from cloudtune.model.serialization import decode
from cloudtune.train.storage import StorageError

OUTPUT = "output.log"
ERRORS = "errors.log"
HOME = Path("/root/.cloudtune")
_BRING_SECONDS = 2.0
_BEAT_SECONDS = 15.0
_METADATA_SECONDS = 120.0
_LAST_TRIES = 20


class Carrier:
    """Carries out an order: its process, its lease, and its record in `store`.

    `variables` are the values for trials that its user's machine has sent.
    """

    def __init__(
        self,
        order: Order,
        store: HeadStore,
        instance: str,
        home: Path = HOME,
        *,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._order = order
        self._variables = {} if variables is None else variables
        self._store = store
        self._instance = instance
        self._home = home
        self._folder = home / "runs" / order.run
        self._mirrors = [
            Mirror(store, self._folder, "run/"),
            Mirror(store, home / "profiles", "profiles/"),
            Mirror(store, home / "knowledge", "knowledge/"),
        ]
        self._told_at = self._renewed_at = 0.0
        self._asked_to_stop = False

    def carry(self, renew: Callable[[], object]) -> int:
        """Run the order to its end, and return its exit code; `renew` extends the head's lease.

        On return the store has the complete record, if it answers at all.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._tell(None)
        with (
            (self._folder / OUTPUT).open("ab") as output,
            (self._folder / ERRORS).open("ab") as errors,
            self._start_run(output, errors) as process,
        ):
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_BRING_SECONDS)
                self._look_after(process, renew)
        for _ in range(_LAST_TRIES):
            with contextlib.suppress(StorageError):
                self._bring()
                self._tell(process.returncode)
                break
            time.sleep(_BRING_SECONDS)
        return process.returncode

    def _start_run(self, output: IO[bytes], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        order = self._order
        return subprocess.Popen(
            [sys.executable, "-m", "cloudtune", *order.arguments],
            cwd=order.folder,
            env={
                **os.environ,
                **order.environment,
                "CLOUDTUNE_HOME": str(self._home),
                "CLOUDTUNE_RUN": order.run,  # `runs.home` knows these
                "CLOUDTUNE_BEGAN": repr(order.began),
                "CLOUDTUNE_VARIABLES": json.dumps(dict(self._variables)),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
        )

    def _look_after(self, process: subprocess.Popen[bytes], renew: Callable[[], object]) -> None:
        now = time.monotonic()
        if now >= self._renewed_at + RENEW_SECONDS:
            self._renewed_at = now
            with contextlib.suppress(CloudtuneError):  # retried in a minute
                renew()
        with contextlib.suppress(StorageError):  # retried in the next round
            self._bring()
            if now >= self._told_at + _BEAT_SECONDS:
                self._tell(None)
            if not self._asked_to_stop and self._store.read(STOP) is not None:
                self._asked_to_stop = True
                process.send_signal(signal.SIGINT)

    def _bring(self) -> None:
        for mirror in self._mirrors:
            mirror.bring()

    def _tell(self, code: int | None) -> None:
        self._told_at = time.monotonic()
        self._store.tell(State(time.time(), self._instance, self._order.attempt, code))


def main() -> int:
    """Fetch the order, and carry it out; the calling script then ends the machine."""
    parser = argparse.ArgumentParser(prog="cloudtune.infra.heads.head_runner")
    parser.add_argument("--at", required=True, help="STORAGE/RUN")
    parser.add_argument("--until", type=float, required=True, help="the hard end, Unix time")
    options = parser.parse_args()
    shutdown = shutil.which("shutdown")
    try:
        instance = metadata("instance-id", patience=_METADATA_SECONDS)
        store = HeadStore(options.at)
        parcel = store.read(PARCEL)
        asked = store.read(ORDER)
        if parcel is None or asked is None:
            say(f"cloudtune-head: there is no order, or no parcel, at {options.at}/{FOLDER}")
            return 1
        unpack(parcel, HOME)
        order = decode(Order, json.loads(asked))
        variables = _open_variables(store)
        fetch(store, HOME / "runs" / order.run, "run/")  # from an earlier head
        say(f"cloudtune-head: carries {order.run}")
        carrier = Carrier(order, store, instance, variables=variables)
        lease = None if shutdown is None else Lease(options.until, shutdown)
        code = carrier.carry(lambda: lease and lease.renew(unix_time() + 60 * LEASE_MINUTES))
        say(f"cloudtune-head: ended with {code}; its record is in {options.at}/{FOLDER}")
    except (CloudtuneError, OSError) as error:
        say(f"cloudtune-head: {error}")
        return 1
    return code


def _open_variables(store: HeadStore) -> dict[str, str]:
    """Return the variables that this head was sent, and remove them from the storage."""
    key = os.environ.pop(KEY_VARIABLE, "")
    sealed = store.read(VARIABLES)
    if not key or sealed is None:
        return {}
    values = unseal(sealed, key)
    store.remove(VARIABLES)
    return values


if __name__ == "__main__":
    sys.exit(main())
