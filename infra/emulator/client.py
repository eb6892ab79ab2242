"""Controlling a running emulator from outside: for tests, campaigns and the command line."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from http.client import HTTPException
from typing import Any

from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.infra.emulator.requests import Access

_PATIENCE_S = 15.0


class EmulatorControl:
    """The control side of an emulator, with the access of `find_emulator(home).access`.

    Faults are mappings as in JSON, `{"kind": …}`: see docs/emulator.md. Every method raises
    UsageError if the emulator refuses the request, and CloudtuneError if it fails or doesn't
    answer.
    """

    def __init__(self, access: Access) -> None:
        self.endpoint = access.endpoint
        self._access = access

    def ping(self) -> dict[str, Any]:
        """Return pid, live instances, whether it is closing, its time and its clock."""
        return dict(self._ask("ping"))

    def instances(self) -> list[dict[str, Any]]:
        """Return all data of every instance, including ended ones."""
        return list(self._ask("instances"))

    def instance(self, instance: str) -> dict[str, Any]:
        return next(record for record in self.instances() if record["id"] == instance)

    def calls(self) -> list[dict[str, Any]]:
        """Return the latest calls to EC2, oldest first, each with the fault that it met."""
        return list(self._ask("report")["calls"])

    def faults(self) -> list[dict[str, Any]]:
        """Return the pending faults; posting them again has the same effect."""
        return list(self._ask("report")["faults"])

    def replace(self, faults: Iterable[Mapping[str, Any]]) -> None:
        self._ask("replace", faults=[dict(fault) for fault in faults])

    def add(self, *faults: Mapping[str, Any]) -> None:
        """Add faults after the pending ones."""
        self._ask("add", faults=[dict(fault) for fault in faults])

    def reclaim(self, instance: str, notice: float) -> float:
        """Interrupt a spot instance after a notice (0: without); return when it ends."""
        return float(self._ask("reclaim", instance=instance, notice=notice))

    def kill(self, instance: str) -> None:
        """Kill the processes of an instance; EC2 still reports it running, and bills it."""
        self._ask("kill", instance=instance)

    def freeze(self, instance: str) -> None:
        """Suspend the processes of an instance; EC2 still reports it running, and bills it."""
        self._ask("freeze", instance=instance)

    def thaw(self, instance: str) -> None:
        self._ask("thaw", instance=instance)

    def move_clock(self, seconds: float) -> float:
        """Move the emulator's clock; return how far it is ahead of this machine's now."""
        return float(self._ask("move_clock", seconds=seconds))

    def shut_down(self, *, only_if_idle: bool) -> None:
        """End the emulator; UsageError if it must be idle and isn't."""
        self._ask("shut_down", only_if_idle=only_if_idle)

    def _ask(self, command: str, **arguments: object) -> Any:
        url = f"{self.endpoint}/_cloudtune/{command}"
        data = json.dumps(arguments).encode()
        request = urllib.request.Request(url, data, self._access.headers)  # noqa: S310 - our own
        # A proxy of the environment knows nothing of this machine's loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_PATIENCE_S) as response:
                return json.load(response)
        except urllib.error.HTTPError as refusal:
            with refusal:
                kind = UsageError if refusal.code < 500 else CloudtuneError
                raise kind(refusal.read().decode(errors="replace")) from None
        except (OSError, HTTPException) as error:  # the latter where it ends in mid-answer
            raise CloudtuneError(f"no emulator answers at {self.endpoint}: {error}") from None
