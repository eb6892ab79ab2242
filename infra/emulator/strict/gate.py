"""Who is let through to what: the refusals of a strict emulator, worded as AWS words them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from werkzeug.wrappers import Response

from cloudtune.infra.emulator.requests import Ec2Error
from cloudtune.infra.emulator.strict.evaluator import verdict
from cloudtune.infra.emulator.strict.rights import asked_of, call_of

if TYPE_CHECKING:
    from werkzeug.wrappers import Request

    from cloudtune.infra.emulator.requests import Signed
    from cloudtune.infra.emulator.strict.evaluator import Asked
    from cloudtune.infra.emulator.strict.principals import Principal, Principals


class RefusedError(Ec2Error):
    """A call that its caller has no right to, in the words of its service."""

    def __init__(self, service: str, who: Principal, asked: Asked, *, explicit: bool) -> None:
        why = (
            "with an explicit deny in an identity-based policy"
            if explicit
            else f"because no identity-based policy allows the {asked.action} action"
        )
        on = "" if asked.resource == "*" else f" on resource: {asked.resource}"
        told = f"User: {who.arn} is not authorized to perform: {asked.action}{on} {why}"
        self.service = service
        if service == "ec2":
            told = f"You are not authorized to perform this operation. {told}"
            super().__init__("UnauthorizedOperation", told, 403)
        elif service in {"iam", "s3", "sts"}:
            super().__init__("AccessDenied", told, 403)
        else:
            super().__init__("AccessDeniedException", told, 400)


def answer_of(error: Ec2Error) -> Response:
    """Return an error as its service would send it."""
    service = error.service if isinstance(error, RefusedError) else "ec2"
    code, message = escape(error.code), escape(error.message)
    if service == "s3":
        body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
        return Response(body, error.status, mimetype="application/xml")
    if service in {"iam", "sts"}:
        told = f"<Type>Sender</Type><Code>{code}</Code><Message>{message}</Message>"
        body = f"<ErrorResponse><Error>{told}</Error></ErrorResponse>"
        return Response(body, error.status, mimetype="text/xml")
    if service == "ec2":
        return Response(error.xml(), error.status, mimetype="text/xml")
    body = json.dumps({"__type": error.code, "message": error.message})
    return Response(body, error.status, mimetype="application/x-amz-json-1.1")


def check_rights(request: Request, signed: Signed, principals: Principals) -> None:
    """Pass if who has signed a request may do all that it asks for.

    Raises:
        RefusedError: something of it isn't allowed.
    """
    who = principals.find(signed.key)
    if who is None or who.policies is None:  # the account's own key may do everything
        return
    call = call_of(request, signed.service, signed.region)
    policies = who.policies()
    for asked in asked_of(request, call):
        found = verdict(policies, asked)
        if found != "allowed":
            raise RefusedError(signed.service, who, asked, explicit=found == "denied")
