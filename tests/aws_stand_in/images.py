"""The images of the stand-in: they stand for AWS's deep learning AMI, by its names in SSM.

The names of the parameters are those that AWS publishes ("DLAMI release notes", retrieving the AMI
ID with SSM, 2026-11). What boots is the Python of whoever started the emulator, whatever the image.
Tests need their ids without moto, which takes a second.
"""

from collections.abc import Mapping
from typing import Any

IMAGES: Mapping[str, str] = {"x86_64": "ami-0c1000000000e8664", "arm64": "ami-0c1000000000ea64e"}
"""By the architecture of their cores."""
_AMAZON = "898082745236"  # owns the deep learning AMIs
_NAME = "Deep Learning OSS Nvidia Driver AMI GPU PyTorch 2.9 (Ubuntu 24.04) 20261101"
_PARAMETER = "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-{}/latest/ami-id"
_SYSTEMS = ("ubuntu-22.04", "ubuntu-24.04", "amazon-linux-2023")


def register(backend: Any) -> None:
    """Put the images into moto's EC2 of a region, once, and their names into its SSM."""
    if IMAGES["x86_64"] in backend.amis:
        return
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.ec2.models.amis import Ami
    from moto.ssm.models import ssm_backends

    region = backend.region_name
    parameters = ssm_backends[DEFAULT_ACCOUNT_ID][region]._parameters
    for architecture, image in IMAGES.items():
        backend.amis[image] = Ami(
            backend,
            image,
            name=f"{_NAME} {architecture}",
            description="Stands for AWS's",
            owner_id=_AMAZON,
            owner_alias="amazon",
            public=True,
            virtualization_type="hvm",
            architecture=architecture,
            root_device_type="ebs",
            region_name=region,
        )
        for system in _SYSTEMS:
            name = _PARAMETER.format(architecture, system)
            parameters[name] = [_parameter(name, image)]


def _parameter(name: str, image: str) -> Any:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.ssm.models import Parameter

    return Parameter(
        account_id=DEFAULT_ACCOUNT_ID,
        name=name,
        value=image,
        parameter_type="String",
        description=None,
        allowed_pattern=None,
        keyid=None,
        last_modified_date=1.79e9,
        version=1,
        data_type="aws:ec2:image",
    )
