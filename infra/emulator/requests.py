"""EC2's errors on the wire, and its client tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
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
