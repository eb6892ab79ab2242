"""What EC2 does with a request before it acts: fail by an injected fault, honour a client token."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TokenProblem = Literal["IdempotentParameterMismatch", "IdempotentInstanceTerminated"]
_PROBLEM_TEXT: dict[TokenProblem, str] = {
    "IdempotentParameterMismatch": (
        "Arguments on this idempotent request are inconsistent with arguments used in previous "
        "request(s)."
    ),
    "IdempotentInstanceTerminated": (
        "The request to launch an instance uses the same client token as a previous request for "
        "which the instance has been terminated."
    ),
}


class Ec2Error(Exception):
    """An answer that EC2 gives instead of acting."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status

    def xml(self) -> str:
        """Return the error as EC2 words it."""
        error = f"<Code>{escape(self.code)}</Code><Message>{escape(self.message)}</Message>"
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Response><Errors><Error>{error}</Error></Errors>"
            "<RequestID>00000000-0000-0000-0000-000000000000</RequestID></Response>"
        )


@dataclass
class Fault:
    """An error for the next `times` calls of an action whose parameters match."""

    action: str
    code: str
    message: str = ""
    match: Mapping[str, str] = field(default_factory=dict)
    times: int = 1

    def fits(self, action: str, parameters: Mapping[str, str]) -> bool:
        """Return whether this call is to fail."""
        wanted = self.match.items()
        return self.action == action and all(parameters.get(k) == v for k, v in wanted)


class Faults:
    """The faults still to come and the calls seen so far (the newest 5000)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._calls: deque[dict[str, Any]] = deque(maxlen=5000)

    def replace(self, faults: Sequence[Mapping[str, Any]]) -> None:
        """Set the faults to come; those not used up are forgotten, the calls are kept.

        Raises:
            TypeError: a fault lacks `action` or `code`, or has a field that doesn't exist.
        """
        fresh = [Fault(**fault) for fault in faults]
        with self._lock:
            self._faults = fresh

    def check(self, action: str, parameters: Mapping[str, str]) -> None:
        """Record a call, and raise the error that waits for it, if any."""
        instance_type = parameters.get("InstanceType")
        with self._lock:
            self._calls.append(
                {"time": time.time(), "action": action, "instance_type": instance_type}
            )
            fault = next((f for f in self._faults if f.fits(action, parameters)), None)
            if fault is None:
                return
            fault.times -= 1
            self._faults = [f for f in self._faults if f.times > 0]
        status = 500 if fault.code.startswith("Insufficient") else 400
        raise Ec2Error(fault.code, fault.message or fault.code, status)

    def report(self) -> dict[str, Any]:
        """Return what is left and what was called, for JSON."""
        with self._lock:
            return {"faults": [asdict(f) for f in self._faults], "calls": list(self._calls)}


@dataclass(frozen=True)
class _Answer:
    parameters: Mapping[str, str]
    instances: tuple[str, ...]
    body: bytes


class Tokens:
    """The answers given to each ClientToken; the caller serialises access."""

    def __init__(self, is_live: Callable[[str], bool]) -> None:
        self._is_live = is_live
        self._answers: dict[tuple[str, str], _Answer] = {}

    def replay(self, region: str, parameters: Mapping[str, str]) -> bytes | None:
        """Return the answer that this request got before, or None when it is new.

        Raises:
            Ec2Error: the token was used with other parameters, or its instances are gone.
        """
        answer = self._answers.get((region, parameters.get("ClientToken", "")))
        if answer is None:
            return None
        if answer.parameters != parameters:
            raise _problem("IdempotentParameterMismatch")
        if not all(self._is_live(instance) for instance in answer.instances):
            raise _problem("IdempotentInstanceTerminated")
        return answer.body

    def remember(
        self, region: str, parameters: Mapping[str, str], instances: Sequence[str], body: bytes
    ) -> None:
        """Keep a successful answer; a request without a token is not kept."""
        token = parameters.get("ClientToken")
        if token:
            self._answers[region, token] = _Answer(dict(parameters), tuple(instances), body)


def _problem(code: TokenProblem) -> Ec2Error:
    return Ec2Error(code, _PROBLEM_TEXT[code])
