"""What an instance's metadata service tells of its role: the paths under `iam/`.

The paths and the shape of the answers are those of the EC2 user guide (Instance metadata
categories; Retrieve security credentials from instance metadata), as known to us.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudtune.infra.emulator.strict.principals import Principals

_CREDENTIALS = "iam/security-credentials"


def role_metadata(path: str, profile: Any, instance: str, principals: Principals) -> str | None:
    """Return the answer to a path under `iam/`; None where there is nothing.

    `profile` is moto's instance profile of the instance, None where it was launched without.
    """
    role = profile.roles[0].name if profile is not None and profile.roles else None
    if profile is None:
        return None
    if path == "iam/info":
        return _told(InstanceProfileArn=profile.arn, InstanceProfileId=profile.id)
    if role is not None and path.rstrip("/") == _CREDENTIALS:
        return str(role)
    if role is None or path != f"{_CREDENTIALS}/{role}":
        return None
    try:
        found = principals.role_credentials(role, instance)
    except LookupError:
        return None
    return _told(
        found.made,
        Type="AWS-HMAC",
        AccessKeyId=found.key,
        SecretAccessKey=found.secret,
        Token=found.token,
        Expiration=_stamp(found.expires),
    )


def _told(updated: float | None = None, **more: str) -> str:
    when = _stamp(time.time() if updated is None else updated)
    return json.dumps({"Code": "Success", "LastUpdated": when, **more}, indent=2)


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
