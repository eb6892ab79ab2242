"""The scenario of an emulator: the faults still to come, and the calls and launches they meet."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from cloudtune.infra.emulator.faults import (
    CallError,
    CallFault,
    Capacity,
    Fault,
    LaunchFault,
    LostAnswer,
    Pool,
    Quota,
    Repeated,
    Throttle,
    fault_kind,
    to_json,
)
from cloudtune.infra.emulator.rates import Buckets, Rate, find_rate
from cloudtune.infra.emulator.requests import Ec2Error

_CallFault = TypeVar("_CallFault", bound=CallFault)
# Enough for a test to look back on; a long demo must not fill the memory.
_CALLS_KEPT = 5000
_STATUS = {
    "InternalError": 500,
    "InternalFailure": 500,
    "RequestLimitExceeded": 503,
    "ServiceUnavailable": 503,
    "Unavailable": 503,
}


@dataclass
class _Live:
    """A fault, and how often it still strikes."""

    fault: Fault
    left: int | None = None
    met: int = 0

    def strikes(self) -> bool:
        """Count one matching call or launch; return whether it is struck."""
        assert isinstance(self.fault, Repeated)
        self.met += 1
        struck = self.left != 0 and self.fault.strikes(self.met - 1)
        if struck and self.left is not None:
            self.left -= 1
        return struck

    def rest(self) -> dict[str, Any]:
        if isinstance(self.fault, Repeated):
            return to_json(replace(self.fault, times=self.left))
        return to_json(self.fault)


class Scenario:
    """The pending faults and the latest calls; thread-safe. `now` is the emulator's time.

    `is_throttled` returns whether a call (region, action, parameters) exceeds the account's rate; a
    throttle among the faults takes precedence.
    """

    def __init__(
        self,
        now: Callable[[], float],
        is_throttled: Callable[[str, str, Mapping[str, str]], bool] = lambda *_: False,
    ) -> None:
        self._now = now
        self._is_throttled = is_throttled
        self._lock = threading.RLock()
        self._faults: list[_Live] = []
        self._buckets = Buckets(now)
        self._calls: deque[dict[str, Any]] = deque(maxlen=_CALLS_KEPT)

    def replace(self, faults: Iterable[Fault]) -> None:
        """Replace the pending faults; the calls are kept."""
        with self._lock:
            self._faults = []
            self._buckets = Buckets(self._now)
            self.add(faults)

    def add(self, faults: Iterable[Fault]) -> None:
        """Add faults after the pending ones; a limit of capacity replaces an equal one."""
        with self._lock:
            for fault in faults:
                lifted = _without_limit(fault)
                if lifted is not None:
                    self._faults = [it for it in self._faults if _without_limit(it.fault) != lifted]
                if fault != lifted:
                    times = fault.times if isinstance(fault, Repeated) else None
                    self._faults.append(_Live(fault, times))

    def refuse(self, action: str, parameters: Mapping[str, str], region: str = "") -> None:
        """Record a call, and raise its pending error, if any."""
        with self._lock:
            call = {
                "time": self._now(),
                "action": action,
                "instance_type": parameters.get("InstanceType"),
                "fault": None,
            }
            self._calls.append(call)
            error = self._throttle(action, parameters, region)
            if error is None and (fault := self._struck(CallError, action, parameters)):
                error = ec2_error(fault.code, fault.message or fault.code)
            if error is not None:
                call["fault"] = error.code
                raise error

    def loses(self, action: str, parameters: Mapping[str, str]) -> str | None:
        """Return how the answer to a call is lost, "reset" or an error code; None if it isn't."""
        with self._lock:
            fault = self._struck(LostAnswer, action, parameters)
            if fault is None:
                return None
            self._calls[-1]["fault"] = fault_kind(fault)
            return fault.answer

    def befall(self, pool: Pool) -> list[LaunchFault]:
        """Return the faults of an instance being launched, and count it."""
        with self._lock:
            faults = [
                live.fault
                for live in self._faults
                if isinstance(live.fault, LaunchFault) and live.fault.fits(pool) and live.strikes()
            ]
            self._forget_spent()
            return faults

    def capacities(self) -> list[Capacity]:
        with self._lock:
            return [live.fault for live in self._faults if isinstance(live.fault, Capacity)]

    def quotas(self) -> list[Quota]:
        with self._lock:
            return [live.fault for live in self._faults if isinstance(live.fault, Quota)]

    def report(self) -> dict[str, Any]:
        """Return the pending faults and the calls, for JSON."""
        with self._lock:
            return {"faults": [live.rest() for live in self._faults], "calls": list(self._calls)}

    def _throttle(self, action: str, parameters: Mapping[str, str], region: str) -> Ec2Error | None:
        rates = [live.fault for live in self._faults if isinstance(live.fault, Throttle)]
        rate = next((rate for rate in rates if rate.fits(action)), None)
        if rate is not None:
            burst, per_second = find_rate(action)
            if rate.burst is not None:
                burst = rate.burst
            if rate.per_second is not None:
                per_second = rate.per_second
            throttled = not self._buckets.take(action, Rate(burst, per_second))
        else:
            throttled = self._is_throttled(region, action, parameters)
        if not throttled:
            return None
        return ec2_error("RequestLimitExceeded", f"Request limit exceeded: {action}.")

    def _struck(
        self, kind: type[_CallFault], action: str, parameters: Mapping[str, str]
    ) -> _CallFault | None:
        """Return the first fault of a kind that strikes this call."""
        for live in self._faults:
            fault = live.fault
            if isinstance(fault, kind) and fault.fits(action, parameters) and live.strikes():
                self._forget_spent()
                return fault
        return None

    def _forget_spent(self) -> None:
        self._faults = [live for live in self._faults if live.left != 0]


def ec2_error(code: str, message: str) -> Ec2Error:
    """Return an error with the HTTP status that EC2 gives it."""
    # EC2 says 500 for a want of capacity: to its clients that is a fault of the server.
    usual = 500 if code.startswith("Insufficient") else 400
    return Ec2Error(code, message, _STATUS.get(code, usual))


def _without_limit(fault: Fault) -> Fault | None:
    """Return a limit of capacity without its number; None for other faults."""
    if isinstance(fault, Capacity):
        return replace(fault, instances=None)
    return replace(fault, vcpus=None) if isinstance(fault, Quota) else None
