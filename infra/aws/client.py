"""Clients of AWS's services, all with the credentials of one session."""

from typing import Any

from botocore.config import Config

from cloudtune import aws_session
from cloudtune.infra.provider import Endpoint


def client(
    service: str,
    endpoint: Endpoint,
    *,
    region: str | None = None,
    attempts: int = 3,
    read_seconds: float = 30.0,
) -> Any:
    """Return boto3's client of a service at an endpoint; `region` if not in the endpoint's.

    A call is made at most `attempts` times, and an answer waited for `read_seconds`.

    Raises:
        botocore.exceptions.BotoCoreError: the profile that AWS_PROFILE names doesn't exist.
    """
    return aws_session.session().client(
        service,  # type: ignore[call-overload]  # boto3-stubs knows the services by literal
        region_name=region or endpoint.region,
        endpoint_url=endpoint.url,
        aws_access_key_id=endpoint.key,
        aws_secret_access_key=endpoint.secret,
        config=Config(
            retries={"mode": "standard", "total_max_attempts": attempts},
            connect_timeout=5,
            read_timeout=read_seconds,
        ),
    )
