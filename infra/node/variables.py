"""The environment variables of a run's trials: values from the controller, secrets from AWS."""

import contextlib
import json
import netrc
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from cloudtune import aws_session
from cloudtune.errors import UsageError
from cloudtune.experiment.variables import SECRETS_MANAGER, SecretSource

# A shorter value is part of many words, which a message would lose.
_SHORTEST_HIDDEN: Final = 4
_ATTEMPTS: Final = 5
_ANSWER_SECONDS: Final = 20.0


class SecretError(UsageError):
    """A secret can't be read; the message names its variable and says what to do."""


@dataclass(frozen=True)
class Variables:
    """The variables of trials: `values` by name, and the `secrets` that a node reads itself.

    A node reads them with its own rights, in the AWS region `region`. `private` are the names whose
    values no record may have. Nothing writes an object of this class to a file.
    """

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, SecretSource] = field(default_factory=dict)
    region: str = ""
    private: frozenset[str] = frozenset()

    def read(self) -> dict[str, str]:
        """Return all variables, after reading the secrets.

        Raises:
            SecretError: a secret can't be read.
        """
        read = {name: read_secret(name, it, self.region) for name, it in self.secrets.items()}
        return {**self.values, **read}

    def hide(self, text: str, values: Mapping[str, str]) -> str:
        """Return a text with the name of a private variable in place of its value."""
        present = {name: values[name] for name in self.private if name in values}
        # The longest first: one may be a part of another.
        for name in sorted(present, key=lambda name: (-len(present[name]), name)):
            if len(present[name]) >= _SHORTEST_HIDDEN:
                text = text.replace(present[name], f"[{name}]")
        return text

    def hide_in_bytes(self, data: bytes, values: Mapping[str, str]) -> bytes:
        """Return the output of a process as `hide` returns a text."""
        if not self.private:
            return data
        text = data.decode("utf-8", "surrogateescape")
        return self.hide(text, values).encode("utf-8", "surrogateescape")


def add_to(environment: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with these variables; a PYTHONPATH goes before the present one."""
    added = {**environment, **variables}
    paths = [each["PYTHONPATH"] for each in (variables, environment) if each.get("PYTHONPATH")]
    if paths:
        added["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return added


def with_wandb_mode(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which W&B writes files where there is no key for its server.

    It would ask for one, and a trial has no terminal.
    """
    if _has_wandb_key(environment):
        return {**environment}
    return {"WANDB_MODE": "offline", **environment}


def _has_wandb_key(environment: Mapping[str, str]) -> bool:
    if environment.get("WANDB_API_KEY"):
        return True
    host = urlsplit(environment.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname
    with contextlib.suppress(OSError, netrc.NetrcParseError):  # `wandb login` writes it there
        return netrc.netrc(environment.get("NETRC")).authenticators(host or "") is not None
    return False


def read_secret(name: str, source: SecretSource, region: str) -> str:
    """Return the secret for a variable from a store of AWS in a region.

    Raises:
        SecretError: it can't be read, or isn't there.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415  takes long

    try:
        text = _ask(source, region)
    except (BotoCoreError, ClientError) as error:
        raise SecretError(f"secrets.{name}: {source} can't be read: {error}") from None
    if text is None:
        raise SecretError(f"secrets.{name}: {source} is binary; store it as text")
    return _value_of_key(name, source, text) if source.key else text


def _ask(source: SecretSource, region: str) -> str | None:
    if source.store == SECRETS_MANAGER:
        answer = _client("secretsmanager", region).get_secret_value(SecretId=source.name)
        text: str | None = answer.get("SecretString")
        return text
    stored = _client("ssm", region).get_parameter(Name=source.name, WithDecryption=True)
    return str(stored["Parameter"]["Value"])


def _client(service: str, region: str) -> Any:
    from botocore.config import Config  # noqa: PLC0415  takes long

    return aws_session.session().client(
        service,  # type: ignore[call-overload]  # boto3-stubs knows the services by literal
        region_name=region,
        config=Config(
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            connect_timeout=5,
            read_timeout=_ANSWER_SECONDS,
        ),
    )


def _value_of_key(name: str, source: SecretSource, text: str) -> str:
    """Return the value of the source's key in a JSON object."""
    try:
        value = json.loads(text)[source.key]
    except (ValueError, TypeError, KeyError):  # whose own text would have the secret
        message = f"secrets.{name}: {source.name} is no JSON object with a key {source.key}"
        raise SecretError(message) from None
    return value if isinstance(value, str) else json.dumps(value)
