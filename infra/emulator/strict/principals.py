"""Who calls the emulator: its own key, people, and roles by temporary credentials.

The emulator's own key (`requests.Access`) may do everything, as an account's root may. Everybody
else is a user or a role of moto's IAM, which `CreateUser`, `CreateAccessKey`, `CreateRole` and
`PutRolePolicy` make over the wire as on AWS; what they may do is read from their policies at each
call. Importing this module imports moto's IAM.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.sts.models import sts_backends

from cloudtune.infra.emulator.requests import Ec2Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cloudtune.infra.emulator.requests import Access

PARTITION = "aws"
ACCOUNT = DEFAULT_ACCOUNT_ID
CREDENTIAL_SECONDS = 6 * 3600
"""How long an instance's credentials last: about six hours on AWS (EC2 user guide, IAM roles)."""
RENEWED_BEFORE_S = 15 * 60.0
"""So long before they end, the metadata service has new ones: five minutes at least on AWS."""


@dataclass(frozen=True)
class Principal:
    """Somebody with a key: the ARN that AWS's messages name, and the policies that count now.

    `policies` is None for who may do everything. Temporary credentials have a `token` and an end
    (`expires`, the emulator's epoch seconds).
    """

    key: str
    secret: str = field(repr=False)
    arn: str
    token: str = field(default="", repr=False)
    expires: float | None = None
    policies: Callable[[], Sequence[Mapping[str, Any]]] | None = None

    @property
    def may_do_everything(self) -> bool:
        """Whether no policy is asked."""
        return self.policies is None


@dataclass(frozen=True)
class RoleCredentials:
    """Temporary credentials of a role; times are the emulator's epoch seconds."""

    key: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    made: float
    expires: float


class Principals:
    """Everybody who may call; `now` is the emulator's time in epoch seconds."""

    def __init__(self, access: Access, now: Callable[[], float]) -> None:
        root = f"arn:{PARTITION}:iam::{ACCOUNT}:root"
        self._own = Principal(access.key, access.secret, root)
        self._now = now
        self._issued: dict[tuple[str, str], RoleCredentials] = {}
        self._ends: dict[str, float] = {}

    def find(self, key: str) -> Principal | None:
        """Return who has an access key; None where nobody has."""
        if key == self._own.key:
            return self._own
        return self._role_session(key) or self._user(key)

    def secret_of(self, key: str, token: str) -> str | None:
        """Return the secret of a key that comes with this session token; None where nobody has it.

        Raises:
            Ec2Error: RequestExpired, temporary credentials whose time is over.
        """
        found = self.find(key)
        if found is None or found.token != token:
            return None
        if found.expires is not None and self._now() >= found.expires:
            raise Ec2Error("RequestExpired", "Request has expired.")
        return found.secret

    def role_credentials(self, role: str, session: str = "cloudtune") -> RoleCredentials:
        """Return the credentials that a role's session has now: the same until they near their end.

        Raises:
            LookupError: there is no role of that name.
        """
        known = self._issued.get((role, session))
        if known is not None and self._now() < known.expires - RENEWED_BEFORE_S:
            return known
        if role not in {each.name for each in _iam().get_roles()}:
            raise LookupError(f"no role is called {role}")
        made = sts_backends[ACCOUNT][PARTITION].assume_role(
            "us-east-1", session, _iam().get_role(role).arn, "", CREDENTIAL_SECONDS, ""
        )
        now = self._now()
        issued = RoleCredentials(
            made.access_key_id,
            made.secret_access_key,
            made.session_token,
            now,
            now + CREDENTIAL_SECONDS,
        )
        self._issued[role, session], self._ends[issued.key] = issued, issued.expires
        return issued

    def person(self, name: str, policies: Iterable[Mapping[str, Any]]) -> Principal:
        """Return a user with a new key and these policies in place of those the user had."""
        iam = _iam()
        if name not in iam.users:
            iam.create_user(PARTITION, name)
        user = iam.users[name]
        user.access_keys.clear()  # AWS lets a user have two
        user.policies = {
            f"policy-{number}": json.dumps(policy) for number, policy in enumerate(policies)
        }
        key = iam.create_access_key(name)
        found = self._user(key.access_key_id)
        assert found is not None
        return found

    def _role_session(self, key: str) -> Principal | None:
        session = sts_backends[ACCOUNT][PARTITION].get_assumed_role_from_access_key(key)
        if session is None:
            return None
        name = session.role_arn.rpartition("/")[2]
        return Principal(
            key,
            session.secret_access_key,
            session.arn,
            session.session_token,
            self._ends.get(key, session.expiration.timestamp()),
            policies=lambda: role_policies(name),
        )

    def _user(self, key: str) -> Principal | None:
        for user in list(_iam().users.values()):
            for each in user.access_keys:
                if each.access_key_id == key and each.status == "Active":
                    return Principal(
                        key,
                        each.secret_access_key,
                        user.arn,
                        policies=lambda user=user: _policies(user),  # type: ignore[misc]
                    )
        return None


def role_policies(name: str) -> list[Mapping[str, Any]]:
    """Return the policies of a role, inline and attached; [] where the role is gone."""
    role = next((each for each in _iam().get_roles() if each.name == name), None)
    return [] if role is None else _policies(role)


def _policies(owner: Any) -> list[Mapping[str, Any]]:
    """Return the documents of a role's or a user's policies, groups of a user aside."""
    inline = [json.loads(document) for document in owner.policies.values()]
    attached = [
        json.loads(version.document)
        for policy in owner.managed_policies.values()
        for version in policy.versions
        if version.version_id == policy.default_version_id
    ]
    return [*inline, *attached]


def _iam() -> Any:
    return iam_backends[ACCOUNT][PARTITION]
