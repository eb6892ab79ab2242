"""The data of an experiment: folders that trials find beside their script, and where they are."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import PlainValidator

from cloudtune.errors import UsageError, quote
from cloudtune.experiment.validation import refuse

S3: Final = "s3://"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
# `*` and `?` would stand for others in a policy.
_ADDRESS = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/[^*?]*)?")
_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def is_in_s3(source: str) -> bool:
    """Whether data is in a bucket; otherwise it is a folder."""
    return source.startswith(S3)


def parse_address(text: str) -> str:
    """Return the address of data in S3, without a slash at its end.

    Raises:
        UsageError: it isn't one.
    """
    if not _ADDRESS.fullmatch(text) or not text.isprintable():
        raise UsageError(f"{quote(text)} is no address in S3; write s3://bucket/prefix")
    return text.rstrip("/")


def resolve_sources(data: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the sources of data, with absolute paths in place of those in a folder."""
    sources = {}
    for name, source in data.items():
        folder = directory / Path(source).expanduser()
        sources[name] = source if is_in_s3(source) else str(folder)
    return sources


def covers(address: str, source: str) -> bool:
    """Whether all of a source is below an address in S3."""
    return source == address or source.startswith(f"{address}/")


def _data(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise refuse(f"{quote(value)} is not a mapping; write {{train: s3://bucket/prefix}}")
    return {_check_name(name): _source(name, source) for name, source in value.items()}


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise refuse(f"{quote(name)} can't name a folder; write letters, digits, . _ or -")
    return name


def _source(name: str, source: object) -> str:
    if not isinstance(source, str) or not source.strip() or not source.isprintable():
        raise refuse(f"{quote(source)} is no folder and no s3://bucket/prefix", name)
    if not _ELSEWHERE.match(source):
        return source
    try:
        return parse_address(source)
    except UsageError as error:
        raise refuse(str(error), name) from None


Data = Annotated[dict[str, str], PlainValidator(_data)]
