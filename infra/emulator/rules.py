"""An emulator's rules for its callers, which only require a signature.

Tests that need an EC2 as strict as AWS's start the emulator with their own rules: they subclass
`AccessRules` (tests/aws_stand_in).
"""

from collections.abc import Callable, Mapping, Sequence
from wsgiref.types import WSGIApplication

from werkzeug.wrappers import Request, Response

from cloudtune.infra.emulator.faults import Quota
from cloudtune.infra.emulator.machine import Machine
from cloudtune.infra.emulator.machines import HERE, Housing, RunningMachines
from cloudtune.infra.emulator.requests import Access, Signed
from cloudtune.infra.emulator.scenario import Scenario


class AccessRules:
    """Who may call what, what is refused, the answers of metadata, and where machines run."""

    host = "127.0.0.1"
    """The emulator's address."""
    housing: Housing = HERE
    hidden_seconds = 0.0
    """Seconds for which calls don't see a new instance, unless a fault says otherwise."""

    def attach(
        self,
        access: Access,
        machines: RunningMachines,
        scenario: Scenario,
        application: WSGIApplication,
    ) -> None:
        """Receive the emulator's parts; called once, before the first request."""

    def signed(self, access: Access, request: Request) -> Signed:
        """Return the service and signer of a request; raise Ec2Error if it isn't signed."""
        return access.check_signature(request)

    def is_throttled(self, region: str, action: str, parameters: Mapping[str, str]) -> bool:
        """Whether EC2 refuses a call after too many others; if not, it counts."""
        return False

    def check(self, signed: Signed, parameters: Mapping[str, str]) -> None:
        """Check that EC2 would act on a call, apart from quotas and capacity.

        Raises:
            Ec2Error: it wouldn't.
        """

    def answer(self, signed: Signed, request: Request, pass_on: Callable[[], Response]) -> Response:
        """Return the answer to a call to another service; `pass_on` lets moto answer."""
        return pass_on()

    def quotas(self, scenario: Sequence[Quota]) -> Sequence[Quota]:
        """Return the quotas for a launch, given those of the scenario."""
        return scenario

    def metadata(self, machine: Machine, item: str, *, has_token: bool) -> tuple[int, str] | None:
        """Return the status and text of a metadata item; None for the emulator's own answer."""
        return None
