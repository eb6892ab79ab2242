"""Who calls the stand-in: its own key, users, and roles by temporary credentials.

The own key (`requests.Access`) may do everything, as an account's root may. Anybody else is a user
or a role of moto's IAM, which `CreateUser`, `CreateAccessKey`, `CreateRole` and `PutRolePolicy`
make over the wire as on AWS; their policies are read at each call.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.sts.models import sts_backends

from cloudtune.infra.emulator.requests import Access

ACCOUNT = DEFAULT_ACCOUNT_ID
PARTITION = "aws"
CREDENTIAL_SECONDS = 6 * 3600
"""How long an instance's credentials last: about six hours on AWS (EC2 user guide, IAM roles)."""


@dataclass(frozen=True)
class Principal:
    """Somebody with a key: the ARN that AWS's messages name, and the policies that count now.

    `policies` is None for the root. Temporary credentials have a `token`; none of them end.
    """

    secret: str = field(repr=False)
    arn: str
    token: str = field(default="", repr=False)
    policies: Callable[[], Sequence[Mapping[str, Any]]] | None = None


@dataclass(frozen=True)
class RoleCredentials:
    """Temporary credentials of a role; times are the emulator's epoch seconds."""

    key: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    issued_at: float
    expires: float


class Principals:
    """Everybody who may call; `now` is the emulator's time in epoch seconds."""

    def __init__(self, access: Access, now: Callable[[], float]) -> None:
        self._own_key = access.key
        self._root = Principal(access.secret, f"arn:{PARTITION}:iam::{ACCOUNT}:root")
        self._now = now
        self._issued: dict[tuple[str, str], RoleCredentials] = {}

    def find(self, key: str) -> Principal | None:
        """Return who has an access key; None if it is unknown."""
        if key == self._own_key:
            return self._root
        return self._role_session(key) or self._user(key)

    def secret_of(self, key: str, token: str) -> str | None:
        """Return the secret of a key that comes with this session token; None if unknown."""
        principal = self.find(key)
        return None if principal is None or principal.token != token else principal.secret

    def role_credentials(self, role: str, session: str) -> RoleCredentials | None:
        """Return the only credentials of a role's session; None if there is no such role."""
        if (role, session) in self._issued:
            return self._issued[role, session]
        arn = next((it.arn for it in _iam().get_roles() if it.name == role), None)
        if arn is None:
            return None
        assumed = sts_backends[ACCOUNT][PARTITION].assume_role(
            "us-east-1", session, arn, "", CREDENTIAL_SECONDS, ""
        )
        now = self._now()
        issued = RoleCredentials(
            assumed.access_key_id,
            assumed.secret_access_key,
            assumed.session_token,
            issued_at=now,
            expires=now + CREDENTIAL_SECONDS,
        )
        self._issued[role, session] = issued
        return issued

    def _role_session(self, key: str) -> Principal | None:
        session = sts_backends[ACCOUNT][PARTITION].get_assumed_role_from_access_key(key)
        if session is None:
            return None
        name = session.role_arn.rpartition("/")[2]
        return Principal(
            session.secret_access_key,
            session.arn,
            session.session_token,
            policies=lambda: _role_policies(name),
        )

    def _user(self, key: str) -> Principal | None:
        for user in list(_iam().users.values()):
            for access_key in user.access_keys:
                if access_key.access_key_id == key:
                    return Principal(
                        access_key.secret_access_key,
                        user.arn,
                        policies=lambda user=user: _policies(user),  # type: ignore[misc]
                    )
        return None


def control_policies() -> list[Mapping[str, Any]]:
    """Return the organization's service control policies: managed policies of the path /scp/.

    AWS has them in another account; they count for everybody but the root of our stand-in.
    """
    managed = [policy for policy in _iam().managed_policies.values() if policy.path == "/scp/"]
    return [json.loads(policy.versions[0].document) for policy in managed]


def _role_policies(name: str) -> list[Mapping[str, Any]]:
    """Return the policies of a role; none if the role is gone."""
    role = next((it for it in _iam().get_roles() if it.name == name), None)
    return [] if role is None else _policies(role)


def _policies(owner: Any) -> list[Mapping[str, Any]]:
    return [json.loads(document) for document in owner.policies.values()]


def _iam() -> Any:
    return iam_backends[ACCOUNT][PARTITION]
