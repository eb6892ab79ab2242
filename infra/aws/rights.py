"""What a run needs of the roles of heads and instances, and setup hasn't given them.

Rights of an instance profile that isn't setup's are its owner's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from cloudtune.experiment.data import covers, is_in_s3
from cloudtune.infra.aws.account.inventory import absent_secrets, settings_of_setup
from cloudtune.infra.aws.account.policies import node_role
from cloudtune.infra.aws.account.stack import Clients
from cloudtune.infra.aws.data import MOST_FILES, look
from cloudtune.infra.aws.errors import CALL_ERRORS
from cloudtune.infra.provider import Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cloudtune.experiment.schema import Experiment
    from cloudtune.infra.aws.account.template import Settings


def lacking_rights(experiment: Experiment, *, has_head: bool) -> Iterator[str]:
    """Yield a line for each thing that is missing, or that a role of setup may not do.

    `has_head`: a head controls the run, and gives its instances their role.
    """
    region = experiment.cloud.region
    setup = settings_of_setup(Endpoint(region))
    has_own_role = experiment.cloud.instance_profile == node_role(region)
    own = setup if has_own_role else None
    yield from _secrets(experiment, own)
    yield from _data(experiment, own)
    if setup is None:  # unknown
        return
    if has_head or has_own_role:
        yield from _storage(experiment, setup)
    if has_head and not has_own_role and experiment.cloud.instance_profile is not None:
        yield from _role(experiment, experiment.cloud.instance_profile, setup)


def _secrets(experiment: Experiment, setup: Settings | None) -> Iterator[str]:
    """Yield a line for each secret that no instance could read."""
    region = experiment.cloud.region
    sources = {name: it for name, it in experiment.secret_sources.items() if it.is_in_aws}
    if not sources:
        return
    absent = absent_secrets(Endpoint(region), sources.values())
    for name, source in sources.items():
        if source in absent:
            yield f"secrets.{name}: {region} has no {source}; store it, or correct the name"
    if setup is None:
        return
    allowed = setup.place.secrets
    lacking = {name: it.place for name, it in sources.items() if it.place not in allowed}
    command = _command(region, "secrets", allowed, lacking.values())
    for name, place in lacking.items():
        yield f"secrets.{name}: instances may not read {place}: {command} lets them"


def _data(experiment: Experiment, setup: Settings | None) -> Iterator[str]:
    """Yield a line for each folder of data that no instance could copy."""
    region = experiment.cloud.region
    sources = {name: it for name, it in experiment.data.items() if is_in_s3(it)}
    for name, source in sources.items():
        files = look(Endpoint(region), source).files
        if files == 0:
            yield f"data.{name}: nothing is below {source}/; correct the address"
        elif files is not None and files > MOST_FILES:
            yield (
                f"data.{name}: more than {MOST_FILES:,} files are below {source}/, and each "
                "instance would ask for each: pack them into archives, or read them in the script"
            )
    if setup is None:
        return
    allowed = [*setup.place.data, experiment.storage.rstrip("/")]
    lacking = {name: it for name, it in sources.items() if not _is_below(it, allowed)}
    command = _command(region, "data", setup.place.data, lacking.values())
    for name, source in lacking.items():
        yield f"data.{name}: instances may not read {source}: {command} lets them"


def _storage(experiment: Experiment, setup: Settings) -> Iterator[str]:
    """Yield a line if the storage is none of setup's."""
    storage = experiment.storage.rstrip("/")
    if not _is_below(storage, [setup.storage, *setup.place.storages]):
        command = _command(experiment.cloud.region, "storage", setup.place.storages, [storage])
        yield f"storage: heads and instances may not write to {storage}: {command} lets them"


def _role(experiment: Experiment, profile: str, setup: Settings) -> Iterator[str]:
    """Yield a line if heads may not give instances the role of an instance profile."""
    region = experiment.cloud.region
    try:
        answer = Clients(Endpoint(region))["iam"].get_instance_profile(InstanceProfileName=profile)
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") == "NoSuchEntity":
            yield f"cloud.instance_profile: the account has no instance profile {profile}"
        return
    except CALL_ERRORS:
        return
    roles = [role["Arn"] for role in answer["InstanceProfile"]["Roles"]]
    lacking = [role for role in roles if role not in setup.place.other_roles]
    command = _command(region, "role", setup.place.other_roles, lacking)
    for role in lacking:
        yield f"cloud.instance_profile: heads may not give instances {role}: {command} lets them"


def _is_below(source: str, addresses: list[str]) -> bool:
    return any(covers(address, source) for address in addresses)


def _command(region: str, option: str, allowed: Iterable[str], lacking: Iterable[str]) -> str:
    """Return the command with which setup allows what is lacking too."""
    listed = ",".join(dict.fromkeys([*allowed, *lacking]))
    return f"`cloudtune aws setup --region {region} --{option} {listed}`"
