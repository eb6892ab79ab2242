"""Who may ask the emulator; EC2's errors on the wire, and its client tokens."""

from __future__ import annotations

import calendar
import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from werkzeug.wrappers import Request

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/\d{8}/(?P<region>[a-z0-9-]+)/"
    r"(?P<service>[a-z0-9-]+)/aws4_request, ?SignedHeaders=(?P<signed>[a-z0-9;-]+), ?"
    r"Signature=(?P<signature>[0-9a-f]{64})"
)
_CONTROL_HEADER = "X-Cloudtune-Token"
_SESSION_HEADER = "x-amz-security-token"
_BODY_HEADER = "x-amz-content-sha256"
_SIGNATURE_SECONDS = 900.0  # as long as AWS takes a signature for fresh


class Ec2Error(Exception):
    """An error that EC2 returns instead of acting."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status

    def xml(self) -> str:
        error = f"<Code>{escape(self.code)}</Code><Message>{escape(self.message)}</Message>"
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Response><Errors><Error>{error}</Error></Errors>"
            "<RequestID>00000000-0000-0000-0000-000000000000</RequestID></Response>"
        )


class Signed(NamedTuple):
    """The service of a signed request, and the key that signed it."""

    service: str
    region: str
    key: str


@dataclass(frozen=True)
class Access:
    """The address and the secrets of an emulator, created at its start and known to its user.

    Calls to EC2 are signed with `key` and `secret`; the control side requires the `token`. A
    machine has its own key, with which it can read its metadata and shut itself down.
    """

    endpoint: str
    key: str
    secret: str = field(repr=False)
    token: str = field(repr=False)

    @classmethod
    def create(cls, endpoint: str) -> Access:
        key = f"EMULATED{secrets.token_hex(6).upper()}"
        return cls(endpoint, key, secrets.token_urlsafe(30), secrets.token_urlsafe(30))

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Access:
        return cls(*(str(state.get(name, "")) for name in ("endpoint", "key", "secret", "token")))

    @property
    def headers(self) -> dict[str, str]:
        return {_CONTROL_HEADER: self.token, "Content-Type": "application/json"}

    def machine_key(self, machine: str) -> str:
        return hmac.new(self.token.encode(), machine.encode(), hashlib.sha256).hexdigest()

    def metadata(self, machine: str) -> str:
        """Return the address of a machine's metadata service, which others can't guess."""
        return f"{self.endpoint}/_imds/{machine}/{self.machine_key(machine)}"

    def is_for_us(self, request: Request) -> bool:
        """Whether a request's host is our address, which pages of other origins can't fake."""
        return request.environ.get("HTTP_HOST") == self.endpoint.removeprefix("http://")

    def may_control(self, request: Request) -> bool:
        return _same(request.headers.get(_CONTROL_HEADER, ""), self.token)

    def may_ask(self, key: str, machine: str) -> bool:
        return _same(key, self.machine_key(machine))

    def check_signature(
        self, request: Request, secret_of: Callable[[str, str], str | None] = lambda *_: None
    ) -> Signed:
        """Return the service and the key of a signed request (AWS's signature version 4).

        `secret_of` has the secrets of keys besides our own, given the key and the session token
        that comes with it ("" for none).

        Raises:
            Ec2Error: it isn't signed, with no key that is known, not lately, or was changed.
        """
        claim = _AUTHORIZATION.fullmatch(request.headers.get("Authorization", ""))
        if claim is None:
            raise _signature_error("it is not signed with the credentials of this emulator")
        token = request.headers.get(_SESSION_HEADER, "")
        is_own = _same(claim["key"], self.key) and not token
        secret = self.secret if is_own else secret_of(claim["key"], token)
        if secret is None:
            raise _signature_error("it is not signed with the credentials of this emulator")
        try:
            stamp = time.strptime(request.headers.get("X-Amz-Date", ""), "%Y%m%dT%H%M%SZ")
        except ValueError:
            raise _signature_error("it doesn't say when it was signed") from None
        if not _same(claim["signature"], self._signature(request, claim, secret)):
            raise _signature_error("its signature doesn't fit it")
        if abs(time.time() - calendar.timegm(stamp)) > _SIGNATURE_SECONDS:
            raise Ec2Error("RequestExpired", "Request has expired.")
        return Signed(claim["service"], claim["region"], claim["key"])

    def _signature(self, request: Request, claim: re.Match[str], secret: str) -> str:
        """Return a request's signature with a secret, as botocore computes it."""
        from botocore.auth import S3SigV4Auth, SigV4Auth  # noqa: PLC0415 - 0.3 s, servers only
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415
        from botocore.credentials import Credentials  # noqa: PLC0415

        kind = S3SigV4Auth if claim["service"] == "s3" else SigV4Auth
        auth = kind(Credentials(claim["key"], secret), claim["service"], claim["region"])
        signed = {name: request.headers.get(name, "") for name in claim["signed"].split(";")}
        # What it says of its body isn't believed; only S3 lets uploads say nothing.
        stated = signed.get(_BODY_HEADER)
        if stated and (claim["service"] != "s3" or re.fullmatch("[0-9a-f]{64}", stated)):
            signed[_BODY_HEADER] = hashlib.sha256(request.get_data()).hexdigest()
        url = self.endpoint + request.environ["REQUEST_URI"]
        asked = AWSRequest(request.method, url, signed, data=request.get_data())
        asked.context["timestamp"] = request.headers["X-Amz-Date"]
        text = auth.string_to_sign(asked, auth.canonical_request(asked))
        return str(auth.signature(text, asked))


def _same(given: str, expected: str) -> bool:
    """Compare in constant time; an empty `expected` never matches."""
    return bool(expected) and hmac.compare_digest(given.encode(), expected.encode())


def _signature_error(why: str) -> Ec2Error:
    return Ec2Error(
        "AuthFailure",
        f"AWS was not able to validate the provided access credentials: {why}",
        status=401,
    )


class Tokens:
    """The answers given to each ClientToken; the caller serialises access."""

    def __init__(self, is_live: Callable[[str], bool]) -> None:
        self._is_live = is_live
        # By region and token: the request, its instances, the answer.
        self._answers: dict[tuple[str, str], tuple[Mapping[str, str], Sequence[str], bytes]] = {}

    def replay(self, region: str, parameters: Mapping[str, str]) -> bytes | None:
        """Return the earlier answer to this request, or None if it is new.

        Raises:
            Ec2Error: the token was used with other parameters, or its instances are gone.
        """
        answer = self._answers.get((region, parameters.get("ClientToken", "")))
        if answer is None:
            return None
        asked, instances, body = answer
        if asked != parameters:
            raise Ec2Error(
                "IdempotentParameterMismatch",
                "Arguments on this idempotent request are inconsistent with arguments used in "
                "previous request(s).",
            )
        if not all(map(self._is_live, instances)):
            raise Ec2Error(
                "IdempotentInstanceTerminated",
                "The request to launch an instance uses the same client token as a previous "
                "request for which the instance has been terminated.",
            )
        return body

    def remember(
        self, region: str, parameters: Mapping[str, str], instances: Sequence[str], body: bytes
    ) -> None:
        """Save a successful answer, unless the request has no token."""
        token = parameters.get("ClientToken")
        if token:
            self._answers[region, token] = dict(parameters), tuple(instances), body
