"""The stack of `cloudtune aws setup`: change sets that are shown first, and deletion."""

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from cloudtune.errors import CloudtuneError
from cloudtune.infra.aws.account.policies import SPOT_SERVICE, STACK, Document
from cloudtune.infra.aws.client import client
from cloudtune.infra.aws.errors import CALL_ERRORS
from cloudtune.infra.provider import Endpoint

# Seconds between two requests to CloudFormation, which takes about a minute.
_PAUSE_SECONDS = 2.0
# Maximum seconds: roles, a group and a bucket take CloudFormation a minute or two.
_PATIENCE_SECONDS = 900.0
_UNCHANGED = ("didn't contain changes", "No updates are to be performed")
_VERBS = {"Add": "create", "Modify": "update", "Remove": "delete"}
_OBJECTS_PER_DELETE = 1000  # S3's limit


class Clients(dict[str, Any]):
    """boto3 clients of an endpoint by service, created on first use."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def __missing__(self, service: str) -> Any:
        self[service] = client(service, self._endpoint, attempts=4)
        return self[service]


@dataclass(frozen=True)
class Stack:
    """A stack: its status in CloudFormation's words, and its outputs by name.

    A stack has outputs once it was fully created, and keeps them if an update is rolled back.
    """

    status: str
    outputs: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


def read(clients: Clients) -> Stack | None:
    """Return the region's stack; None if there is none.

    Raises:
        botocore.exceptions.ClientError: the caller may not ask.
    """
    try:
        (stack,) = clients["cloudformation"].describe_stacks(StackName=STACK)["Stacks"]
    except ClientError as error:
        if "does not exist" in str(error):
            return None
        raise
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", ())}
    return Stack(stack["StackStatus"], outputs, stack.get("StackStatusReason", ""))


def body(clients: Clients) -> Document | None:
    """Return the template of the stack's last change."""
    written = clients["cloudformation"].get_template(StackName=STACK)["TemplateBody"]
    return json.loads(written) if isinstance(written, str) else written  # type: ignore[no-any-return]


class ChangeSet:
    """The changes of a template, created by CloudFormation and carried out by `execute`.

    A context manager that deletes a change set that wasn't executed. `changes` has a verb and a
    logical id for each resource; settings may change without any (then `is_empty` is False).

    Raises:
        CloudtuneError: CloudFormation refuses the template, or the caller.
    """

    def __init__(self, clients: Clients, template: Document, parameters: Mapping[str, str]) -> None:
        self._clients = clients
        self._names = {"StackName": STACK, "ChangeSetName": f"setup-{secrets.token_hex(4)}"}
        self._is_executed = False
        with _refusals():
            # A stack with only a change set is under review: nothing changes it now.
            idle = "REVIEW_IN_PROGRESS"
            stack = _wait(clients, until=lambda it: it == idle or not it.endswith("_IN_PROGRESS"))
            if stack is not None and stack.status == "ROLLBACK_COMPLETE":
                delete(clients)  # a first creation that failed; it can't be updated
                stack = None
            self._is_new = stack is None or stack.status == "REVIEW_IN_PROGRESS"
            clients["cloudformation"].create_change_set(
                **self._names,
                ChangeSetType="CREATE" if self._is_new else "UPDATE",
                TemplateBody=json.dumps(template),
                Parameters=[
                    {"ParameterKey": name, "ParameterValue": value}
                    for name, value in parameters.items()
                ],
                Capabilities=["CAPABILITY_NAMED_IAM"],
            )
            described = self._describe()
        self.is_empty = described is None
        self.changes = described or []

    def __enter__(self) -> "ChangeSet":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_executed:
            self._discard()

    def _describe(self) -> list[tuple[str, str]] | None:
        cloudformation = self._clients["cloudformation"]
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while True:
            described = cloudformation.describe_change_set(**self._names)
            if described["Status"] == "CREATE_COMPLETE":
                break
            reason = described.get("StatusReason", "")
            if described["Status"] == "FAILED" and any(text in reason for text in _UNCHANGED):
                return None
            if described["Status"] == "FAILED" or time.monotonic() > give_up:
                self._discard()
                raise CloudtuneError(f"CloudFormation can't change stack {STACK}: {reason}")
            time.sleep(_PAUSE_SECONDS)
        changes = (change["ResourceChange"] for change in described["Changes"])
        return [(_VERBS[change["Action"]], change["LogicalResourceId"]) for change in changes]

    def execute(self) -> None:
        """Make the changes, and wait until they are complete.

        Raises:
            CloudtuneError: one failed; CloudFormation has rolled back the others.
        """
        with _refusals():
            self._clients["cloudformation"].execute_change_set(**self._names)
            self._is_executed = True
            stack = _wait(self._clients, until=lambda status: not status.endswith("_IN_PROGRESS"))
            if stack is None or stack.status not in {"CREATE_COMPLETE", "UPDATE_COMPLETE"}:
                why = "; ".join(_failures(self._clients)) or "see its events in the console"
                raise CloudtuneError(
                    f"stack {STACK} was not changed: {why}. CloudFormation undid the rest"
                )

    def _discard(self) -> None:
        """Delete the change set, and the empty stack that holds a first one."""
        cloudformation = self._clients["cloudformation"]
        with contextlib.suppress(*CALL_ERRORS):
            cloudformation.delete_change_set(**self._names)
            if self._is_new:
                cloudformation.delete_stack(StackName=STACK)


def delete(clients: Clients) -> None:
    """Delete the stack, and wait until it is gone; its bucket stays.

    Raises:
        CloudtuneError: a part of it can't be deleted.
    """
    with _refusals():
        clients["cloudformation"].delete_stack(StackName=STACK)
        stack = _wait(clients, until=lambda status: status == "DELETE_FAILED")
        if stack is not None:
            why = "; ".join(_failures(clients)) or stack.reason
            raise CloudtuneError(f"stack {STACK} was not deleted: {why}")


def create_spot_role(clients: Clients) -> None:
    """Create AWS's own role for spot instances, of which an account has one.

    Raises:
        CloudtuneError: AWS refused.
    """
    with _refusals():
        clients["iam"].create_service_linked_role(AWSServiceName=SPOT_SERVICE)


def is_bucket_empty(clients: Clients, bucket: str) -> bool:
    """Whether a bucket is empty.

    Raises:
        CloudtuneError: AWS refused.
    """
    with _refusals():
        return not clients["s3"].list_objects_v2(Bucket=bucket, MaxKeys=1).get("KeyCount")


def delete_bucket(clients: Clients, bucket: str) -> None:
    """Delete a bucket with everything in it.

    Raises:
        CloudtuneError: AWS refused.
    """
    with _refusals():
        s3 = clients["s3"]
        while listed := s3.list_objects_v2(Bucket=bucket, MaxKeys=_OBJECTS_PER_DELETE).get(
            "Contents"
        ):
            keys = [{"Key": listing["Key"]} for listing in listed]
            s3.delete_objects(Bucket=bucket, Delete={"Objects": keys})
        s3.delete_bucket(Bucket=bucket)


def _wait(clients: Clients, *, until: Callable[[str], bool]) -> Stack | None:
    """Return the stack once its status is as wanted; None once there is none."""
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while (stack := read(clients)) is not None:
        if until(stack.status):
            return stack
        if time.monotonic() > give_up:
            raise CloudtuneError(f"stack {STACK} is still {stack.status}: try again later")
        time.sleep(_PAUSE_SECONDS)
    return None


def _failures(clients: Clients) -> Iterator[str]:
    """Yield the failures of the stack's last change, with reasons."""
    events = clients["cloudformation"].describe_stack_events(StackName=STACK)["StackEvents"]
    for event in events:  # the newest first
        reason = event.get("ResourceStatusReason", "")
        if reason == "User Initiated":
            return
        if event["ResourceStatus"].endswith("_FAILED") and "cancelled" not in reason:
            yield f"{event['LogicalResourceId']}: {reason}"


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turn AWS's errors into one that says that the command can be repeated."""
    try:
        yield
    except CALL_ERRORS as error:
        raise CloudtuneError(f"{error}. The same command continues from here") from None
