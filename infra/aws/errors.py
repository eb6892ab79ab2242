"""EC2's error codes, sorted by their meaning for us.

The codes are from the EC2 API's own list; those for lack of capacity are the ones that Karpenter
and AWS ParallelCluster handle (their sources, 2026).
"""

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from cloudtune.model.events import RefusalKind

_CODES: dict[RefusalKind, frozenset[str]] = {
    "capacity": frozenset(
        {
            "InsufficientCapacity",
            "InsufficientFreeAddressesInSubnet",
            "InsufficientHostCapacity",
            "InsufficientInstanceCapacity",
            "InsufficientReservedInstanceCapacity",
            "InsufficientVolumeCapacity",
            "MissingInput",  # a zone without a default subnet
            "ReservationCapacityExceeded",
            "SpotMaxPriceTooLow",
            "UnfulfillableCapacity",
            "Unsupported",
        }
    ),
    "quota": frozenset(
        {
            "InstanceLimitExceeded",
            "MaxFleetCountExceeded",
            "MaxSpotInstanceCountExceeded",
            "PendingVerification",  # a new account: minutes, seldom hours
            "VolumeLimitExceeded",
            "VcpuLimitExceeded",
        }
    ),
    "busy": frozenset(
        {"EC2ThrottledException", "RequestLimitExceeded", "Throttling", "ThrottlingException"}
    ),
    "denied": frozenset(
        {
            "AuthFailure",
            "ExpiredToken",
            "InvalidClientTokenId",
            "NoCredentialsError",  # boto3's own: it sends no request then
            "OptInRequired",
            "PartialCredentialsError",
            "RequestExpired",
            "SignatureDoesNotMatch",
            "UnauthorizedOperation",
        }
    ),
}
_KINDS: dict[str, RefusalKind] = {code: kind for kind, codes in _CODES.items() for code in codes}
_WORTH_ASKING_AGAIN = frozenset({"capacity", "quota", "busy"})
# Refusals of our own node provider, without a call to EC2.
OURS = frozenset({"IntentSpent", "Released"})


def error_code(error: BaseException) -> str:
    """Return EC2's code for a botocore ClientError, or else the name of the exception."""
    answer = getattr(error, "response", None)
    code = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
    return str(code) if code else type(error).__name__


def refusal_kind(code: str) -> RefusalKind:
    """Return the kind of refusal of an `error_code`."""
    return _KINDS.get(code, "unknown")


def is_permanent(code: str) -> bool:
    """Whether a retry is pointless: EC2 has refused, and not for lack of capacity."""
    if refusal_kind(code) in _WORTH_ASKING_AGAIN or code in OURS:
        return False
    return not code.startswith("Internal")


def is_definite(error: BaseException) -> bool:
    """Whether an error of a launch says for certain that nothing was launched.

    A time-out, a broken connection or an internal error doesn't: the instance may exist.
    """
    kind = refusal_kind(error_code(error))
    if not isinstance(error, ClientError):
        return kind == "denied"
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
    return kind in _WORTH_ASKING_AGAIN or status < 500


# The exceptions of failed calls to AWS; the last one if a proxy answers with its own page.
CALL_ERRORS = (ClientError, BotoCoreError, ResponseParserError)


class SortedErrors:
    """The meaning of EC2's errors, for `infra.provider.Calls`."""

    errors = CALL_ERRORS
    code = staticmethod(error_code)
    is_definite = staticmethod(is_definite)
    refusal_kind = staticmethod(refusal_kind)
    is_permanent = staticmethod(is_permanent)
