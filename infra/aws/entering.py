"""Commands and terminals on instances by Systems Manager: no port is open, no key is needed."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.infra.aws.account.policies import EXEC_DOCUMENT, SHELL_DOCUMENT
from cloudtune.infra.aws.account.stack import Clients
from cloudtune.infra.aws.errors import CALL_ERRORS
from cloudtune.infra.node.entering import entering

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cloudtune.infra.provider import Endpoint

_LOOK_SECONDS: Final = 1.0
_GOING_ON: Final = {"Pending", "InProgress", "Delayed", "Cancelling"}
# As many characters of an answer Systems Manager keeps, of what was printed first.
_SHOWN: Final = 24_000
_PLUGIN: Final = "session-manager-plugin"
_HINTS: Final = {
    "InvalidInstanceId": "its agent hasn't reached Systems Manager: it still boots, its subnet has "
    "no way there, or its role is of an earlier setup (`cloudtune aws setup` updates it)",
    "AccessDeniedException": "`cloudtune aws policy person` prints what a person needs",
}


def run_command(endpoint: Endpoint, instance: str, words: Sequence[str]) -> int:
    """Run a command on an instance, print what it printed, and return its exit code.

    An interrupt (Ctrl-C) ends it there, too.

    Raises:
        CloudtuneError: it can't be run there; the message says why.
    """
    ssm = Clients(endpoint)["ssm"]
    command = ""
    try:
        # It may run there before its id is here, without which it can't be ended.
        with _interrupts_held():
            sent = ssm.send_command(
                InstanceIds=[instance],
                DocumentName=EXEC_DOCUMENT,
                Parameters={"commands": [shlex.join(entering(words))]},
            )
            command = sent["Command"]["CommandId"]
        ended = _wait(ssm, command, instance)
    except KeyboardInterrupt:
        # Not allowed by a set-up of before: it ends with the instance.
        with contextlib.suppress(*CALL_ERRORS):
            ssm.cancel_command(CommandId=command, InstanceIds=[instance])
        raise
    except CALL_ERRORS as error:
        raise _unreachable(instance, error) from None
    sys.stdout.write(ended["StandardOutputContent"])
    sys.stderr.write(ended["StandardErrorContent"])
    if len(ended["StandardOutputContent"]) >= _SHOWN:
        sys.stderr.write(
            f"\nnote: these are the first {_SHOWN:,} characters, as many as Systems Manager keeps; "
            "let the command write a file, or cut its output\n"
        )
    if ended["ResponseCode"] < 0:  # it never began, or was ended
        raise CloudtuneError(f"{instance}: Systems Manager says {ended['StatusDetails']}")
    return int(ended["ResponseCode"])


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Raise an interrupt (Ctrl-C) that comes meanwhile at the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # interrupts come in the main thread alone
        return
    came = threading.Event()
    handler = signal.signal(signal.SIGINT, lambda *_: came.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler or signal.SIG_DFL)
    if came.is_set():
        raise KeyboardInterrupt


def _wait(ssm: Any, command: str, instance: str) -> dict[str, Any]:
    """Return what is known of a command once it has ended."""
    while True:
        try:
            known: dict[str, Any] = ssm.get_command_invocation(
                CommandId=command, InstanceId=instance
            )
        except ssm.exceptions.InvocationDoesNotExist:  # in its first moments
            known = {"Status": "Pending"}
        if known["Status"] not in _GOING_ON:
            return known
        time.sleep(_LOOK_SECONDS)


def open_terminal(endpoint: Endpoint, instance: str, words: Sequence[str]) -> int:
    """Open a terminal on an instance, with AWS's own program for it; return its exit code.

    Raises:
        UsageError: the AWS CLI or its plugin isn't on this machine.
    """
    for program in ("aws", _PLUGIN):
        if shutil.which(program) is None:
            raise UsageError(
                f"a terminal on AWS needs {program} on this machine (AWS: Install the Session "
                "Manager plugin); `cloudtune exec` needs neither"
            )
    parameters = {"command": [f"sudo {shlex.join(entering(words))}"]}
    done = subprocess.run(
        [
            *("aws", "ssm", "start-session", "--region", endpoint.region, "--target", instance),
            *("--document-name", SHELL_DOCUMENT, "--parameters", json.dumps(parameters)),
        ],
        check=False,
    )
    return done.returncode


def _unreachable(instance: str, error: Exception) -> CloudtuneError:
    code = ""
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
    hint = _HINTS.get(code, "")
    return CloudtuneError(f"{instance} can't be entered: {error}{f' ({hint})' if hint else ''}")
