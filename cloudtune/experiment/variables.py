"""The environment variables of trials: values, names to take from the person's own, and secrets."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import PlainValidator

from cloudtune.errors import UsageError, allowed_names, quote
from cloudtune.experiment.validation import refuse

SECRETS_MANAGER: Final = "aws-secretsmanager"
PARAMETER_STORE: Final = "ssm"
FILE: Final = "file"
STORES: Final = (SECRETS_MANAGER, PARAMETER_STORE, FILE)

# Of Secrets Manager and of Systems Manager's parameters; `*` would stand for others in a policy.
_AWS_NAME = re.compile(r"[A-Za-z0-9/_+=.@-]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What cloudtune gives each worker itself: its place among the workers, and its GPUs.
_OURS = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    }
)
_OUR_PREFIXES = ("CLOUDTUNE_", "CUDA_MPS_", "RAY_")


@dataclass(frozen=True)
class SecretSource:
    """Where a secret is: its store, its name there, and a key if the secret is a JSON object."""

    store: str
    name: str
    key: str = ""

    @classmethod
    def parse(cls, text: str) -> "SecretSource":
        """Return the source that a text such as "ssm:/team/token" names.

        Raises:
            UsageError: it names no store, or nothing in it.
        """
        store, _, name = text.partition(":")
        if store not in STORES:
            raise UsageError(f"{quote(text)} names no store; {allowed_names(store, STORES)}")
        key = ""
        if store != FILE:
            name, _, key = name.partition("#")
            if name and not _AWS_NAME.fullmatch(name):
                raise UsageError(f"{quote(text)} can't be in a store of AWS; write {store}:NAME")
        if not name.strip() or not name.isprintable():
            raise UsageError(f"{quote(text)} names nothing in its store; write {store}:NAME")
        return cls(store, name, key)

    @property
    def is_in_aws(self) -> bool:
        return self.store != FILE

    @property
    def place(self) -> str:
        """Its store and its name there, such as "ssm:/team/token"."""
        return f"{self.store}:{self.name}"

    def __str__(self) -> str:
        key = f"#{self.key}" if self.key else ""
        return f"{self.place}{key}"


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise refuse(
            f"{quote(name)} can't name a variable; write letters, digits and _, such as HF_HOME"
        )
    if name in _OURS or name.startswith(_OUR_PREFIXES):
        raise refuse(f"{name} is set by cloudtune for each worker; leave it out")
    return name


def _env(value: object) -> dict[str, str | None]:
    """Return the variables by name; None for a value of the person's own environment.

    A list has names, or texts such as "WANDB_MODE=offline".
    """
    if isinstance(value, list | tuple):
        return _listed_env(value)
    if not isinstance(value, Mapping):
        raise refuse(
            f"{quote(value)} is neither a mapping nor a list; write {{HF_HOME: /data/hf}}, or "
            "[WANDB_API_KEY]"
        )
    return {_check_name(name): _text(name, text) for name, text in value.items()}


def _listed_env(entries: list[object] | tuple[object, ...]) -> dict[str, str | None]:
    variables: dict[str, str | None] = {}
    for index, entry in enumerate(entries):
        if not isinstance(entry, str):
            raise refuse(f"{quote(entry)} is no name of a variable; write one", index)
        name, equals, text = entry.partition("=")
        if _check_name(name) in variables:
            raise refuse(f"{name} is listed twice; keep one", index)
        variables[name] = _text(name, text) if equals else None
    return variables


def _text(name: str, value: object) -> str | None:
    """Return the value of a variable; None for that of the person's own environment."""
    if value is None:
        return None
    if isinstance(value, bool):
        word = "true" if value else "false"
        raise refuse(f'{word} may mean true, True or 1; write it in quotes, as in "{word}"', name)
    if not isinstance(value, str | int | float) or "\0" in str(value):
        raise refuse(f"{quote(value)} is not a text; write one, or leave it empty", name)
    return str(value)


def _secrets(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise refuse(f"{quote(value)} is not a mapping; write {{HF_TOKEN: ssm:/team/hf-token}}")
    secrets = {}
    for name, text in value.items():
        _check_name(name)
        if not isinstance(text, str):
            raise refuse(f"{quote(text)} is not a text; write ssm:NAME", name)
        try:
            secrets[name] = str(SecretSource.parse(text))
        except UsageError as error:
            raise refuse(str(error), name) from None
    return secrets


Env = Annotated[dict[str, str | None], PlainValidator(_env)]
Secrets = Annotated[dict[str, str], PlainValidator(_secrets)]
