"""The data of a run in S3, as AWS shows it before anything is rented."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from cloudtune.experiment.data import is_in_s3
from cloudtune.experiment.schema import DataSettings
from cloudtune.infra.aws.account.stack import Clients
from cloudtune.infra.aws.errors import CALL_ERRORS
from cloudtune.infra.provider import Endpoint

if TYPE_CHECKING:
    from cloudtune.experiment.schema import Experiment

# S3 bills $0.0004 for 1,000 GET requests in us-east-1, and as much or a bit more elsewhere.
USD_PER_REQUEST = 4e-7
# An instance copies each file with a request of its own.
MOST_FILES = 200_000
_ABSENT = {"NoSuchBucket", "404"}


@dataclass(frozen=True)
class Contents:
    """What is below an address: files and bytes, None where the caller may not look.

    `region` is the bucket's, "" if unknown.
    """

    files: int | None
    bytes: int = 0
    region: str = ""


def _contents(endpoint: Endpoint, source: str) -> Contents:
    """Return what is in a folder of data, in S3 or on this machine."""
    if is_in_s3(source):
        return look(endpoint, source)
    files = [path for path in Path(source).rglob("*") if path.is_file()]
    return Contents(len(files), sum(path.stat().st_size for path in files))


def look(endpoint: Endpoint, address: str) -> Contents:
    """Return what is below an address in S3, as far as the caller may see it."""
    s3 = Clients(endpoint)["s3"]
    bucket, _, key = address.removeprefix("s3://").partition("/")
    region = _region(s3, bucket)
    pages = s3.get_paginator("list_objects_v2")
    files = size = 0
    prefix = f"{key}/" if key else ""
    try:
        for page in pages.paginate(Bucket=bucket, Prefix=prefix):
            contents = page.get("Contents", ())
            files += len(contents)
            size += sum(found["Size"] for found in contents)
            if files > MOST_FILES:
                break
    except ClientError as error:
        is_absent = error.response.get("Error", {}).get("Code") in _ABSENT
        return Contents(files=0, region=region) if is_absent else Contents(None, region=region)
    except CALL_ERRORS:
        return Contents(None, region=region)
    return Contents(files, size, region)


def with_data_charges(experiment: Experiment) -> Experiment:
    """Return an experiment whose charges include what each instance pays to copy its data.

    Requests, and the transfer where a bucket is in another region. Charges that it has stay. Of
    data within the region they say how large it is: it makes boots longer.
    """
    region = experiment.cloud.region
    held = [_contents(Endpoint(region), it) for it in experiment.data_sources.values()]
    charges = experiment.charges
    update: dict[str, object] = {}
    requests = round(sum(contents.files or 0 for contents in held) * USD_PER_REQUEST, 3)
    if charges.per_launch is None and requests:
        update["per_launch"] = requests
    away = [contents for contents in held if contents.region not in ("", region)]
    size = sum(contents.bytes for contents in away or held)
    if charges.data is None and size:
        update["data"] = DataSettings(region=away[0].region if away else region, gb=size / 1e9)
    if not update:
        return experiment
    return experiment.model_copy(update={"charges": charges.model_copy(update=update)})


def _region(s3: Any, bucket: str) -> str:
    try:
        answer = s3.head_bucket(Bucket=bucket)
    except ClientError as error:
        answer = error.response  # without permission S3 still says where the bucket is
    except CALL_ERRORS:
        return ""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("x-amz-bucket-region", ""))
