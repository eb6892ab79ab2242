"""One boto3 session per process for all calls to AWS: credentials, region, proxy and CA."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import boto3

# The default region: that of the built-in price table.
FALLBACK_REGION = "us-east-1"
# Where the aws command caches credentials of assumed roles, so that MFA is requested once.
_CACHE = Path("~/.aws/cli/cache")
# What to do about missing or expired credentials.
LOG_IN = "log in as for the aws command (`aws sso login`, `aws configure`, AWS_PROFILE)"


def session() -> boto3.Session:
    """Return the session of this process; a new one after its AWS_* variables have changed.

    Raises:
        botocore.exceptions.BotoCoreError: the profile that AWS_PROFILE names doesn't exist.
    """
    variables = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return _session(tuple(sorted(variables.items())))


def region() -> str:
    """Return the region of AWS_REGION, of AWS_DEFAULT_REGION or of the profile, in this order."""
    named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if named:
        return named
    if not has_profiles():
        return FALLBACK_REGION
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415  boto3 takes long

    try:
        return session().region_name or FALLBACK_REGION
    except BotoCoreError:
        return FALLBACK_REGION  # the first call to AWS reports the error


def has_profiles() -> bool:
    """Whether this machine has AWS profiles; an instance with a role, or a container, has none."""
    profile = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    files = (
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    )
    return bool(profile) or any(Path(file).expanduser().is_file() for file in files)


def unreachable(error: BaseException) -> str | None:
    """Return the message for a call that didn't reach AWS; None if AWS refused it."""
    from botocore import exceptions, parsers  # noqa: PLC0415

    if isinstance(error, parsers.ResponseParserError):
        return "something else answers in AWS's place, such as the login page of a proxy"
    if isinstance(error, exceptions.SSLError):
        return f"{error}. If a proxy has certificates of its own, name their file in AWS_CA_BUNDLE"
    no_answer = (exceptions.HTTPClientError, exceptions.ConnectionError)
    return str(error) if isinstance(error, no_answer) else None


@lru_cache(maxsize=1)
def _session(variables: tuple[tuple[str, str], ...]) -> boto3.Session:
    """Return a session for these environment variables, which are only the cache key."""
    import boto3  # noqa: PLC0415  takes long
    import botocore.session  # noqa: PLC0415
    from botocore.utils import JSONFileCache  # noqa: PLC0415

    del variables
    core = botocore.session.get_session()
    # To assume a role, or to log in by SSO, boto3 uses STS in a region of its own choice.
    named = os.environ.get("AWS_REGION") or core.get_config_variable("region")
    core.set_config_variable("region", named or FALLBACK_REGION)
    session = boto3.Session(botocore_session=core)
    roles = core.get_component("credential_provider").get_provider("assume-role")
    roles.cache = JSONFileCache(str(_CACHE.expanduser()))
    return session
