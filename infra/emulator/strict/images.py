"""The image that the emulated AWS offers for GPUs, and the parameter that says which it is."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

from cloudtune.infra.aws.account.names import IMAGE_PARAMETER

if TYPE_CHECKING:
    from moto.ec2.models import EC2Backend

NAME = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04), as the emulator has it"


def offer_image(region: str) -> str:
    """Return the region's image, its id told by the public parameter from now on."""
    from moto.ssm.models import Parameter, ssm_backends  # noqa: PLC0415  rarely asked for

    backend: EC2Backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
    known = next((each for each in backend.amis.values() if each.name == NAME), None)
    image = str((known or backend.register_image(NAME)).id)
    parameters = ssm_backends[DEFAULT_ACCOUNT_ID][region]._parameters  # noqa: SLF001  AWS's own
    if not parameters[IMAGE_PARAMETER]:
        parameters[IMAGE_PARAMETER].append(
            Parameter(
                account_id=DEFAULT_ACCOUNT_ID,
                name=IMAGE_PARAMETER,
                value=image,
                parameter_type="String",
                description=None,
                allowed_pattern=None,
                keyid=None,
                last_modified_date=dt.datetime.now(dt.UTC),
                version=1,
                data_type="aws:ec2:image",
            )
        )
    return image
