"""EC2's error codes, sorted once into what they mean for us.

They are from the EC2 API's own list of error codes; those for want of capacity are in `capacity`,
for the policy acts on them.
"""

from __future__ import annotations

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from cloudtune.capacity import NO_CAPACITY

BUSY = frozenset({"RequestLimitExceeded", "Throttling", "ThrottlingException"})
OURS = frozenset({"IntentSpent", "Released"})
"""Refusals that our own node provider makes, without asking EC2."""


def error_code(error: BaseException) -> str:
    """Return EC2's code for a botocore ClientError, else the name of the exception."""
    answer = getattr(error, "response", None)
    code = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
    return str(code) if code else type(error).__name__


def is_permanent(code: str) -> bool:
    """Whether asking again is pointless: EC2 has said no, and not for want of capacity."""
    return code not in NO_CAPACITY | BUSY | OURS and not code.startswith("Internal")


def is_definite(error: BaseException) -> bool:
    """Whether an error of a launch says for certain that nothing was launched.

    A time-out or a broken connection doesn't: the instance may exist. Nor does an internal error.
    """
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return True
    if not isinstance(error, ClientError):
        return False
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
    return error_code(error) in NO_CAPACITY | BUSY or status < 500


def is_denied(error: BaseException) -> bool:
    """Whether EC2 will not talk to us at all: no credentials, or none that it takes."""
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return True
    return isinstance(error, ClientError) and error_code(error) in {
        "AuthFailure",
        "ExpiredToken",
        "InvalidClientTokenId",
        "OptInRequired",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnauthorizedOperation",
    }


TROUBLE = (ClientError, BotoCoreError)
"""What a call to EC2 raises when it fails."""
