"""What experiments add to RunInstances (`cloud.request`), checked against botocore's own model."""

from collections.abc import Mapping
from typing import Any

from cloudtune.errors import UsageError

# Maximum length of botocore's own sentence, which lists every valid field.
_MOST = 300
# Fields of RunInstances that an experiment can't set, and why.
OURS: Mapping[str, str] = {
    "ClientToken": "it is what makes sure that nothing is bought twice",
    "DryRun": "`run` tries its launches by itself",
    "IamInstanceProfile": "write cloud.instance_profile",
    "ImageId": "write cloud.image",
    "InstanceInitiatedShutdownBehavior": "the lease rests on it",
    "InstanceType": "write cloud.instances",
    "MaxCount": "instances are asked for one by one",
    "MinCount": "instances are asked for one by one",
    "SecurityGroupIds": "write cloud.security_group",
    "SecurityGroups": "write cloud.security_group",
    "SubnetId": "write cloud.subnet or cloud.subnets",
    "TagSpecifications": "instances are found and given back by their tags",
    "UserData": "it makes instances join, and end with their lease",
}


def ending_its_disks(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request whose volumes end with the instance, unless it says that they stay.

    A remaining volume bills, and no run would ever delete it.
    """
    name = "BlockDeviceMappings"
    disks = [
        {**disk, "Ebs": {"DeleteOnTermination": True, **disk["Ebs"]}} if "Ebs" in disk else disk
        for disk in request.get(name, ())
    ]
    return {**request, name: disks} if disks else {**request}


def check_request(request: Mapping[str, Any]) -> None:
    """Check that EC2's model has all of these fields in this form, and that none is ours.

    Raises:
        UsageError: a field is invalid, or ours.
    """
    if not request:
        return
    for name in request:
        if name in OURS:
            raise UsageError(f"cloud.request.{name} is cloudtune's own: {OURS[name]}")
    market = request.get("InstanceMarketOptions", {})
    if isinstance(market, Mapping) and market.get("MarketType") == "spot":
        raise UsageError("cloud.request.InstanceMarketOptions: write cloud.market: spot")
    place = request.get("Placement", {})
    if isinstance(place, Mapping) and "AvailabilityZone" in place:
        raise UsageError("cloud.request.Placement.AvailabilityZone: write cloud.zones")
    from botocore.session import Session  # noqa: PLC0415  it takes long, and few need it
    from botocore.validate import ParamValidator  # noqa: PLC0415

    shape = Session().get_service_model("ec2").operation_model("RunInstances").input_shape
    assert shape is not None
    report = ParamValidator().validate({"MinCount": 1, "MaxCount": 1, **request}, shape)
    if report.has_errors():
        first = report.generate_report().splitlines()[0]
        short = first if len(first) <= _MOST else f"{first[:_MOST]}…"
        raise UsageError(f"cloud.request: {short} (EC2's API reference, RunInstances)")
