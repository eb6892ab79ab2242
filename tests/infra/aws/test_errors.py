import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from cloudtune.infra.aws.errors import is_definite, is_permanent, refusal_kind


def refusal(code: str, status: int = 400) -> ClientError:
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "RunInstances")  # type: ignore[arg-type]


LOST = EndpointConnectionError(endpoint_url="http://127.0.0.1")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", "capacity"),
        ("Unsupported", "capacity"),
        ("MissingInput", "capacity"),
        ("ReservationCapacityExceeded", "capacity"),
        ("EC2ThrottledException", "busy"),
        ("PendingVerification", "quota"),
        ("VcpuLimitExceeded", "quota"),
        ("MaxSpotInstanceCountExceeded", "quota"),
        ("RequestLimitExceeded", "busy"),
        ("UnauthorizedOperation", "denied"),
        ("NoCredentialsError", "denied"),
        ("InvalidAMIID.NotFound", "unknown"),
        ("EndpointConnectionError", "unknown"),
        ("Released", "unknown"),
    ],
)
def test_each_code_is_of_one_of_our_kinds(code: str, kind: str) -> None:
    assert refusal_kind(code) == kind


@pytest.mark.parametrize(
    ("code", "permanent"),
    [
        ("InsufficientInstanceCapacity", False),
        ("VcpuLimitExceeded", False),
        ("RequestLimitExceeded", False),
        ("InternalError", False),
        ("UnauthorizedOperation", True),
        ("InvalidAMIID.NotFound", True),
    ],
)
def test_only_capacity_is_worth_asking_for_again(code: str, *, permanent: bool) -> None:
    assert is_permanent(code) is permanent


def test_a_lost_answer_says_nothing_for_certain() -> None:
    assert not is_definite(LOST)
    assert not is_definite(refusal("InternalError", 500))
    assert is_definite(refusal("InsufficientInstanceCapacity", 500))
    assert is_definite(refusal("UnauthorizedOperation", 403))
    assert is_definite(NoCredentialsError())
