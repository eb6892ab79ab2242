"""What `cloudtune aws setup` calls the things that it makes: the same on every machine."""

from __future__ import annotations

from typing import Final

GROUP: Final = "cloudtune"
POLICY: Final = "cloudtune"
TAG: Final = "cloudtune:setup"
SPOT_SERVICE: Final = "spot.amazonaws.com"
PREFIX: Final = "cloudtune"

IMAGE_PARAMETER: Final = (
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)
"""Where AWS says which its newest base image with NVIDIA's driver is, in each region (Deep Learning
AMI developer guide); the name is that of several public scripts of 2026."""


def head(region: str) -> str:
    """Return the name of the role of a region's heads, and of the profile that holds it.

    Roles are an account's, and what they may do is a region's: so each has its own.
    """
    return f"cloudtune-head-{region}"


def node(region: str) -> str:
    """Return the name of the role of a region's other instances, and of its profile."""
    return f"cloudtune-node-{region}"


def bucket(account: str, region: str) -> str:
    """Return the name of a region's bucket; names of buckets are the world's, so it has both."""
    return f"cloudtune-{account}-{region}"
