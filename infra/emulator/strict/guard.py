"""What a strict cloud asks before it acts: rate, form, names, rights, fit; and how it says no.

The order is EC2's as far as it is known: a call that is throttled costs nothing else; one that
names what isn't there is told so; who may not is told so before anything of the account's state;
DryRun ends there, and neither quotas nor prices are asked for.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from werkzeug.wrappers import Response

from cloudtune.infra.emulator.requests import Ec2Error
from cloudtune.infra.emulator.strict import ec2_rights, other_rights, refusals
from cloudtune.infra.emulator.strict.launches import Launch
from cloudtune.infra.emulator.strict.policies import Asked, verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from werkzeug.wrappers import Request

    from cloudtune.infra.emulator.strict.principals import Principal

DRY_RUN = "Request would have succeeded, but DryRun flag is set."


class DeniedError(Exception):
    """Somebody wants to do what no policy of theirs allows; the text is IAM's sentence."""

    def __init__(self, who: Principal, asked: Asked, *, explicitly: bool) -> None:
        why = (
            "with an explicit deny in an identity-based policy"
            if explicitly
            else f"because no identity-based policy allows the {asked.action} action"
        )
        quote = '"' if asked.action.startswith("s3:") else ""
        where = "" if asked.resource == "*" else f" on resource: {quote}{asked.resource}{quote}"
        super().__init__(
            f"User: {who.arn} is not authorized to perform: {asked.action}{where} {why}"
        )
        self.asked = asked


def check_rights(who: Principal, wanted: Iterable[Asked]) -> None:
    """Pass if somebody may do all that is wanted.

    Raises:
        DeniedError: they may not.
        Ec2Error: a policy has what the emulator doesn't know; AWS refuses it when it is made.
    """
    if who.policies is None:
        return
    policies = who.policies()
    common = {"aws:PrincipalArn": [who.arn], "aws:SecureTransport": ["true"]}
    if ":user/" in who.arn:
        common["aws:username"] = [who.arn.rpartition("/")[2]]
    for each in wanted:
        asked = replace(each, context={**common, **each.context})
        try:
            found = verdict(policies, asked)
        except ValueError as error:
            raise Ec2Error("MalformedPolicyDocument", str(error)) from None
        if found != "allowed":
            raise DeniedError(who, asked, explicitly=found == "denied")


def check_call(who: Principal, region: str, parameters: Mapping[str, str]) -> None:
    """Pass if EC2 would act on a call, quotas, prices and room aside.

    Raises:
        Ec2Error: it wouldn't, or the call asks for no more than to be told (DryRunOperation).
    """
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
    launch = Launch(parameters, backend) if parameters.get("Action") == "RunInstances" else None
    if launch is not None:
        refusals.check_names(launch)
    try:
        check_rights(who, ec2_rights.asked(region, parameters, backend))
    except DeniedError as denied:
        message = f"You are not authorized to perform this operation. {denied}"
        raise Ec2Error("UnauthorizedOperation", message, 403) from None
    if launch is not None:
        refusals.check_fit(launch)
    if parameters.get("DryRun", "").lower() == "true":
        raise Ec2Error("DryRunOperation", DRY_RUN, 412)


def refusal(who: Principal, service: str, region: str, request: Request) -> Response | None:
    """Return the answer to a call to another service whose caller may not; None where they may."""
    if service != "s3" and other_rights.action_of(service, request) in other_rights.FREE:
        return None
    try:
        check_rights(who, other_rights.asked(service, region, request))
    except DeniedError as denied:
        return _denial(denied, service, request)
    return None


def hides_absence(who: Principal, request: Request) -> bool:
    """Whether S3 says 403 to somebody for an object that isn't there, as they may not list."""
    bucket, _, key = request.path.lstrip("/").partition("/")
    if not key or request.method not in ("GET", "HEAD"):
        return False
    try:
        check_rights(who, [Asked("s3:ListBucket", f"arn:aws:s3:::{bucket}")])
    except DeniedError:
        return True
    return False


def absence_denied(who: Principal, request: Request) -> Response:
    """Return what S3 says to them."""
    bucket = request.path.lstrip("/").partition("/")[0]
    asked = Asked("s3:ListBucket", f"arn:aws:s3:::{bucket}")
    return _s3_denial(str(DeniedError(who, asked, explicitly=False)), request)


def _denial(denied: DeniedError, service: str, request: Request) -> Response:
    if service == "s3":
        return _s3_denial(str(denied), request)
    if "X-Amz-Target" in request.headers:
        told: dict[str, Any] = {"__type": "AccessDeniedException", "Message": str(denied)}
        return Response(json.dumps(told), 400, mimetype="application/x-amz-json-1.1")
    body = (
        "<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code>"
        f"<Message>{escape(str(denied))}</Message></Error>"
        "<RequestId>00000000-0000-0000-0000-000000000000</RequestId></ErrorResponse>"
    )
    return Response(body, 403, mimetype="text/xml")


def _s3_denial(message: str, request: Request) -> Response:
    """Return S3's denial; of DeleteObjects, as it says it, one for each key (all are kept)."""
    what = f"<Code>AccessDenied</Code><Message>{escape(message)}</Message>"
    if request.method == "POST" and "delete" in request.args:
        errors = "".join(
            f"<Error><Key>{escape(key)}</Key>{what}</Error>"
            for key in other_rights.deleted_keys(request)
        )
        return Response(f"<DeleteResult>{errors}</DeleteResult>", 200, mimetype="application/xml")
    body = "" if request.method == "HEAD" else f"<Error>{what}</Error>"
    return Response(body, 403, mimetype="application/xml")
