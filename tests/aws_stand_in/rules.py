"""The rules of the stand-in: rate, names, rights and fit are checked before EC2 acts.

The order is EC2's as far as it is known: a throttled call costs nothing else; a call that names
what isn't there fails before its rights are looked at; rights come before anything of the account's
state; DryRun ends there, and quotas aren't looked at.
"""

import io
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl
from wsgiref.types import WSGIApplication
from xml.sax.saxutils import escape

import boto3
from botocore.config import Config
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.s3.models import s3_backends
from werkzeug.wrappers import Request, Response

from cloudtune.infra.emulator.faults import Quota
from cloudtune.infra.emulator.machine import Machine
from cloudtune.infra.emulator.machines import RunningMachines
from cloudtune.infra.emulator.requests import Access, Ec2Error, Signed
from cloudtune.infra.emulator.rules import AccessRules
from cloudtune.infra.emulator.scenario import Scenario
from tests.aws_stand_in import ec2_rights, images, other_rights, quotas, refusals, routes
from tests.aws_stand_in.commands import Commands
from tests.aws_stand_in.company_proxy import SIGNED_HOST, SIGNED_PATH
from tests.aws_stand_in.launches import Launch
from tests.aws_stand_in.policies import Asked, verdict
from tests.aws_stand_in.presigned import check_presigned
from tests.aws_stand_in.principals import Principal, Principals, control_policies
from tests.aws_stand_in.rates import AccountRates
from tests.aws_stand_in.stacks import Stacks

_NOBODY = ""  # whose requests to S3 have no signature
_REGION = "x-amz-bucket-region"
_CREDENTIALS = "iam/security-credentials"


class StandIn(AccessRules):
    """An EC2 that asks for rights, throttles, and refuses and answers late as AWS does."""

    # "Eventual consistency in the Amazon EC2 API" (developer guide) gives no figures: it has
    # clients ask for seconds, and up to five minutes.
    hidden_seconds = 1.0

    def attach(
        self,
        access: Access,
        machines: RunningMachines,
        scenario: Scenario,
        application: WSGIApplication,
    ) -> None:
        self._scenario = scenario
        self._access = access
        self._machines = machines
        self._stacks = Stacks()
        self._commands = Commands(self._reaches_ssm)
        self._rates = AccountRates(machines.clock.now)
        self._principals = Principals(access, machines.clock.now)

    def signed(self, access: Access, request: Request) -> Signed:
        if SIGNED_HOST in request.headers:
            names = (("HTTP_HOST", SIGNED_HOST), ("REQUEST_URI", SIGNED_PATH))
            signed = {name: request.headers[header] for name, header in names}
            body = {"wsgi.input": io.BytesIO(request.get_data())}
            request = Request({**request.environ, **signed, **body})
        if "X-Amz-Signature" not in request.args:
            if ".s3." in request.host and "Authorization" not in request.headers:
                return Signed("s3", "us-east-1", _NOBODY)
            return access.check_signature(request, self._principals.secret_of)
        return check_presigned(request, self._principals.secret_of)

    def is_throttled(self, region: str, action: str, parameters: Mapping[str, str]) -> bool:
        return not self._rates.let_in(region, action, parameters)

    def check(self, signed: Signed, parameters: Mapping[str, str]) -> None:
        backend = _ec2(signed.region)
        images.register(backend)
        routes.register(backend)
        launch = Launch(parameters, backend) if parameters.get("Action") == "RunInstances" else None
        if launch is not None:
            refusals.check_names(launch)
        try:
            check_rights(
                self._who(signed), ec2_rights.list_wishes(signed.region, parameters, backend)
            )
        except DeniedError as denied:
            message = f"You are not authorized to perform this operation. {denied}"
            raise Ec2Error("UnauthorizedOperation", message, 403) from None
        if launch is not None:
            refusals.check_fit(launch)
        if parameters.get("DryRun", "").lower() == "true":
            message = "Request would have succeeded, but DryRun flag is set."
            raise Ec2Error("DryRunOperation", message, 412)

    def answer(self, signed: Signed, request: Request, pass_on: Callable[[], Response]) -> Response:
        images.register(_ec2(signed.region))  # their names are in SSM
        if signed.key == _NOBODY:
            denial = _s3_denial("Access Denied", request)
            return denial if _REGION in denial.headers else Response(status=404)
        if signed.service == "s3":
            return self._s3(self._who(signed), request, pass_on)
        asked = other_rights.list_other_wishes(signed.service, signed.region, request)
        try:
            check_rights(self._who(signed), asked)
        except DeniedError as denied:
            return _denial(denied, request)
        if signed.service == "cloudformation":
            return self._stack(signed, request)
        action = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
        if signed.service == "ssm":
            given = request.get_json(force=True)
            told = self._commands.answer(action, given, self._machines.live())
            if told is not None:
                status, body = told
                return Response(body, status, mimetype="application/x-amz-json-1.1")
        if signed.service == "servicequotas":
            given = request.get_json(force=True)
            answer = quotas.answer(action, given, self._scenario.quotas(), signed.region)
            if answer is not None:
                status, body = answer
                return Response(body, status, mimetype="application/x-amz-json-1.1")
        return pass_on()

    def quotas(self, scenario: Sequence[Quota]) -> Sequence[Quota]:
        return quotas.as_faults(scenario)

    def metadata(self, machine: Machine, item: str, *, has_token: bool) -> tuple[int, str] | None:
        if not has_token:
            return 401, "Unauthorized"  # as where HttpTokens is "required"
        if not item.startswith("iam/"):
            return None
        answer = self._role_metadata(machine, item)
        return (404, "not found") if answer is None else (200, answer)

    def _stack(self, signed: Signed, request: Request) -> Response:
        who = self._who(signed)

        def client(service: str) -> Any:
            return boto3.client(
                service,  # type: ignore[call-overload]
                region_name=signed.region,
                endpoint_url=self._access.endpoint,
                aws_access_key_id=signed.key,
                aws_secret_access_key=who.secret,
                aws_session_token=who.token or None,
                config=Config(proxies={}, s3={"addressing_style": "path"}),
            )

        given = dict(parse_qsl(request.get_data(as_text=True), keep_blank_values=True))
        return Response(self._stacks.answer(signed.region, given, client), mimetype="text/xml")

    def _who(self, signed: Signed) -> Principal:
        principal = self._principals.find(signed.key)
        assert principal is not None, "it is signed with somebody's key"
        return principal

    def _s3(self, who: Principal, request: Request, pass_on: Callable[[], Response]) -> Response:
        bucket, _, key = request.path.lstrip("/").partition("/")
        if not _is_of_expected(bucket, request):
            return _s3_denial("Access Denied", request)
        try:
            check_rights(who, other_rights.list_s3_wishes(request))
            answer = pass_on()
            is_missing = answer.status_code == HTTPStatus.NOT_FOUND
            if is_missing and key and request.method in ("GET", "HEAD"):
                # S3 hides a missing object from callers who may not list the bucket.
                arn = f"arn:aws:s3:::{bucket}"
                check_rights(who, [Asked("s3:ListBucket", arn, other_rights.OWN_BUCKETS)])
        except DeniedError as denied:
            return _s3_denial(str(denied), request)
        return answer

    def _reaches_ssm(self, machine: Machine) -> bool:
        """Whether the agent of a machine may connect to Systems Manager, by network and role."""
        region = machine.settings["AWS_DEFAULT_REGION"]
        services = ("ssm", "ssmmessages", "ec2messages")
        if not all(routes.reaches(_ec2(region), machine.record, it) for it in services):
            return False
        role = self._role_of(machine)
        credentials = role and self._principals.role_credentials(role, machine.id)
        who = credentials and self._principals.find(credentials.key)
        if not who:
            return False
        names = ("ssm:UpdateInstanceInformation", "ssmmessages:OpenDataChannel")
        in_region = {"aws:RequestedRegion": [region]}
        try:
            check_rights(who, [Asked(name, "*", in_region) for name in names])
        except DeniedError:
            return False
        return True

    def _role_of(self, machine: Machine) -> str:
        backend = _ec2(machine.settings["AWS_DEFAULT_REGION"])
        association = backend.iam_instance_profile_associations.get(machine.id)
        return "" if association is None else str(association.iam_instance_profile.roles[0].name)

    def _role_metadata(self, machine: Machine, item: str) -> str | None:
        """Return what an instance learns of its role; paths and shapes are the EC2 user guide's."""
        backend = _ec2(machine.settings["AWS_DEFAULT_REGION"])
        association = backend.iam_instance_profile_associations.get(machine.id)
        if association is None:
            return None
        profile = association.iam_instance_profile
        if item == "iam/info":
            return _metadata_json(
                time.time(), InstanceProfileArn=profile.arn, InstanceProfileId=profile.id
            )
        role = str(profile.roles[0].name)
        if item.rstrip("/") == _CREDENTIALS:
            return role
        credentials = self._principals.role_credentials(role, machine.id)
        if item != f"{_CREDENTIALS}/{role}" or credentials is None:
            return None
        return _metadata_json(
            credentials.issued_at,
            Type="AWS-HMAC",
            AccessKeyId=credentials.key,
            SecretAccessKey=credentials.secret,
            Token=credentials.token,
            Expiration=_stamp(credentials.expires),
        )


def _is_of_expected(bucket: str, request: Request) -> bool:
    """Whether a bucket that exists is of the account that the request expects, if it says one."""
    expected = request.headers.get("x-amz-expected-bucket-owner")
    _, owner = s3_backends.bucket_accounts.get(bucket, ("", expected))
    return expected in {None, owner}


def _ec2(region: str) -> Any:
    return ec2_backends[DEFAULT_ACCOUNT_ID][region]


def _metadata_json(updated: float, **more: str) -> str:
    return json.dumps({"Code": "Success", "LastUpdated": _stamp(updated), **more}, indent=2)


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


class DeniedError(Exception):
    """Somebody wants to do what no policy of theirs allows; the text is IAM's sentence."""

    def __init__(self, who: Principal, asked: Asked, why: str) -> None:
        quote = '"' if asked.action.startswith("s3:") else ""
        where = "" if asked.resource == "*" else f" on resource: {quote}{asked.resource}{quote}"
        super().__init__(
            f"User: {who.arn} is not authorized to perform: {asked.action}{where} {why}"
        )


def check_rights(who: Principal, wanted: Iterable[Asked]) -> None:
    """Pass if somebody may do all that is wanted.

    Raises:
        DeniedError: they may not.
        Ec2Error: a policy has what the stand-in doesn't know; AWS refuses to store such a policy.
    """
    if who.policies is None:
        return
    policies = who.policies()
    demanded = control_policies()
    for asked in wanted:
        context = {"aws:PrincipalArn": [who.arn], **asked.context}
        try:
            answer = verdict(policies, replace(asked, context=context))
            refused = verdict(demanded, replace(asked, context=context)) == "denied"
        except ValueError as error:
            raise Ec2Error("MalformedPolicyDocument", str(error)) from None
        if refused:
            raise DeniedError(who, asked, "with an explicit deny in a service control policy")
        if answer == "denied":
            raise DeniedError(who, asked, "with an explicit deny in an identity-based policy")
        if answer != "allowed":
            no_policy = f"because no identity-based policy allows the {asked.action} action"
            raise DeniedError(who, asked, no_policy)


def _denial(denied: DeniedError, request: Request) -> Response:
    if "X-Amz-Target" in request.headers:
        error = {"__type": "AccessDeniedException", "Message": str(denied)}
        return Response(json.dumps(error), 400, mimetype="application/x-amz-json-1.1")
    body = (
        "<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code>"
        f"<Message>{escape(str(denied))}</Message></Error>"
        "<RequestId>00000000-0000-0000-0000-000000000000</RequestId></ErrorResponse>"
    )
    return Response(body, 403, mimetype="text/xml")


def _s3_denial(message: str, request: Request) -> Response:
    """Return S3's denial; of DeleteObjects one for each key, of which none is deleted."""
    what = f"<Code>AccessDenied</Code><Message>{escape(message)}</Message>"
    if request.method == "POST" and "delete" in request.args:
        errors = "".join(
            f"<Error><Key>{escape(key)}</Key>{what}</Error>"
            for key in other_rights.deleted_keys(request)
        )
        return Response(f"<DeleteResult>{errors}</DeleteResult>", 200, mimetype="application/xml")
    body = "" if request.method == "HEAD" else f"<Error>{what}</Error>"
    # Whoever asks learns in which region a bucket is: so Arrow finds out, unsigned.
    bucket = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets.get(request.path.split("/")[1])
    headers = {} if bucket is None else {_REGION: bucket.region_name}
    return Response(body, 403, headers, mimetype="application/xml")
