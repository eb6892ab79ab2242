"""`cloudtune aws`: check, create and delete what cloudtune needs in an AWS account."""

import functools
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from cloudtune import aws_session
from cloudtune.cli.options import OUTPUT, GroupedCommand, confirm, print_data
from cloudtune.errors import UsageError
from cloudtune.experiment.data import parse_address
from cloudtune.experiment.variables import SecretSource
from cloudtune.infra.aws.account import live as live_check
from cloudtune.infra.aws.account import policies, stack
from cloudtune.infra.aws.account.inventory import Inventory, all_types, lines, load_inventory
from cloudtune.infra.aws.account.policies import SPOT_SERVICE, STACK, Place
from cloudtune.infra.aws.account.stack import ChangeSet, Clients
from cloudtune.infra.aws.account.template import PURPOSES, managed_policy
from cloudtune.infra.aws.account.template import template as template_of
from cloudtune.infra.aws.provider import AWS
from cloudtune.infra.provider import Endpoint

REGION = click.option(
    "--region",
    default=aws_session.region,
    help="Region to rent in (default: of AWS_REGION or the AWS profile, else us-east-1).",
)
YES = click.option("-y", "--yes", is_flag=True, help="Don't ask first.")
INSTANCES = click.option(
    "--instances",
    metavar="TYPES",
    help="Types that runs may rent, such as 'g4dn.*,g5.*' (default: as in the last setup, or all "
    "that cloudtune offers).",
)
ACCOUNT = click.option(
    "--account", metavar="ID", help="Account number; with it, no credentials are needed."
)
TAGS = click.option(
    "--tag",
    "tags",
    metavar="KEY=VALUE",
    multiple=True,
    help="Tag for everything that setup and runs create. Repeatable.",
)
BOUNDARY = click.option(
    "--boundary", default="", metavar="ARN", help="Permissions boundary of the two roles."
)
HEAD_TYPE = click.option(
    "--head-type",
    default="",
    metavar="TYPE",
    help="Instance type of heads (default: m7i.large, else m7i-flex.large).",
)
KMS = click.option(
    "--kms",
    default="",
    metavar="ARN",
    callback=lambda _context, _option, text: _kms(text),
    help="Key that encrypts the bucket and the root disks (default: AWS's own for the bucket).",
)
SECRETS = click.option(
    "--secrets",
    metavar="NAMES",
    callback=lambda _context, _option, text: _secrets(text),
    help="Secrets that instances may read, such as 'ssm:/team/token,aws-secretsmanager:hf'; none "
    "for no more (default: as in the last setup).",
)
DATA = click.option(
    "--data",
    metavar="ADDRESSES",
    callback=lambda _context, _option, text: _data(text),
    help="Data that heads and instances may read, such as 's3://bucket/prefix,s3://other'; none "
    "for no more (default: as in the last setup).",
)
STORAGE = click.option(
    "--storage",
    "storages",
    metavar="ADDRESSES",
    callback=lambda _context, _option, text: _data(text),
    help="Further storages that runs may use, such as 's3://bucket/prefix'; none for no more "
    "(default: as in the last setup).",
)
ROLE = click.option(
    "--role",
    "other_roles",
    metavar="ARNS",
    callback=lambda _context, _option, text: _roles(text),
    help="Roles of your own that heads may give to instances (cloud.instance_profile); none for "
    "no more (default: as in the last setup).",
)
ROLE_PATH = click.option(
    "--role-path",
    "path",
    default="",
    metavar="/PATH/",
    callback=lambda _context, _option, text: _path(text),
    help="Path of the two roles and instance profiles, such as /team/ (default: /).",
)
_KEY = re.compile(r"arn:[\w-]+:kms:[\w-]+:\d{12}:key/[\w-]+")
_ROLE = re.compile(r"arn:[\w-]+:iam::\d{12}:role/[\w+=,.@/-]+")
_OK = 0
_LACKING = 1


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a setup's place; the command gets fields of `Place` as `named`."""

    @functools.wraps(command)
    def collect(
        *,
        instances: str | None,
        path: str,
        head_type: str,
        kms: str,
        secrets: tuple[str, ...] | None,
        data: tuple[str, ...] | None,
        storages: tuple[str, ...] | None,
        other_roles: tuple[str, ...] | None,
        tags: tuple[str, ...] = (),
        boundary: str = "",
        **others: Any,
    ) -> Any:
        if kms and f":{others['region']}:" not in kms:
            raise UsageError(f"--kms {kms}: a key of {others['region']} is needed")
        fields = {
            "types": _split(instances),
            "path": path,
            "boundary": boundary,
            "tags": _tags(tags),
            "head_type": head_type,
            "kms": kms,
        }
        named: dict[str, object] = {name: field for name, field in fields.items() if field}
        lists = {
            "secrets": secrets,
            "data": data,
            "storages": storages,
            "other_roles": other_roles,
        }
        named |= {name: listed for name, listed in lists.items() if listed is not None}
        return command(named=named, **others)

    for option in (ROLE, STORAGE, DATA, SECRETS, KMS, HEAD_TYPE, ROLE_PATH, INSTANCES):
        collect = option(collect)
    return collect


@click.group()
def aws() -> None:
    """Set up an AWS account for cloudtune, check it, and undo the setup.

    Uses the same credentials as the aws command. Between runs, the resources cost nothing except
    for the data in the bucket. Every machine with credentials shares them: `cloudtune docs aws`.
    """


@aws.command(cls=GroupedCommand)
@REGION
@place_options
@click.option("--vpc", metavar="VPC-ID", help="VPC to use (default: the region's default VPC).")
@click.option(
    "--subnets", metavar="IDS", help="Its subnets to use, one a zone (default: all of them)."
)
@TAGS
@BOUNDARY
@YES
@OUTPUT
def setup(
    *,
    region: str,
    named: Mapping[str, Any],
    vpc: str | None,
    subnets: str | None,
    output: str,
    yes: bool,
) -> None:
    """Create what runs need: a security group, two roles, a bucket. Lists it and asks first.

    The resources are one CloudFormation stack, and runs read its settings. What you leave out stays
    as in the last setup.
    """
    clients, account = _look(region)
    template = account.make_template(named)
    parameters = account.make_parameters(clients, vpc, _split(subnets))
    with stack.ChangeSet(clients, template, parameters) as change_set:
        steps = _steps(change_set, account)
        if output == "json":
            if steps and not yes:
                raise UsageError(
                    "-o json can't ask for confirmation: add --yes, or use `cloudtune aws check`"
                )
        else:
            _print_identity(account)
            _print_steps(steps, "create")
            for name, why in account.unknown.items():
                click.echo(f"unknown: {name}: {why}", err=True)
            _confirm(yes=yes or not steps)
        if not change_set.is_empty:
            change_set.execute()
        if not account.spot_role:
            stack.create_spot_role(clients)
    if output == "json":
        print_data({"region": region, "made": steps})
    else:
        click.echo(f"ready: use `cloud: {{provider: aws, region: {region}}}` in an experiment")


@aws.command()
@REGION
@click.option("--bucket", is_flag=True, help="Also delete the bucket, with all checkpoints.")
@YES
def teardown(region: str, *, bucket: bool, yes: bool) -> None:
    """Delete what setup created. Lists it and asks first.

    Refuses while instances of cloudtune are alive in the region. Keeps a bucket that isn't empty,
    unless you add --bucket. Keeps AWS's own role for spot instances.
    """
    clients, account = _look(region)
    alive = AWS.calls(Endpoint(region)).ours(ended=False)
    if alive:
        raise UsageError(
            f"{alive[0].id} of run {alive[0].run or '?'} is alive in {region}"
            f"{f', and {len(alive) - 1} more' if len(alive) > 1 else ''}: `cloudtune gc --all "
            f"--region {region}` terminates all instances"
        )
    name = account.place.bucket
    is_doomed = account.bucket and (bucket or stack.is_bucket_empty(clients, name))
    steps = []
    if account.stack is not None:
        steps.append(f"delete stack {STACK}: the security group, the roles")
    if is_doomed:
        steps.append(f"delete bucket {name}, with everything in it")
    _print_identity(account)
    _print_steps(steps, "delete")
    if account.bucket and not is_doomed:
        click.echo(f"  keep bucket {name}: it isn't empty (delete it with --bucket)")
    _confirm(yes=yes or not steps)
    if account.stack is not None:
        stack.delete(clients)
    if is_doomed:
        stack.delete_bucket(clients, name)


@aws.command()
@REGION
@click.option(
    "--live",
    is_flag=True,
    help="Test with one small instance for a minute (about $0.001); asks first.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    help="With --live: write AWS's answers to this JSON file.",
)
@YES
@OUTPUT
def check(region: str, report: Path | None, output: str, *, live: bool, yes: bool) -> int:
    """Check whether an account has everything that runs need. Changes nothing.

    Each line names a resource and what to do about it. Exits with 1 if something is missing. --live
    makes the calls that runs depend on, and compares the answers with the expected ones.
    """
    clients, account = _look(region)
    if live:
        return _live(clients, account, report, yes=yes)
    report_lines = lines(account)
    if output == "json":
        print_data({"checks": [vars(line) for line in report_lines]})
    else:
        _print_identity(account)
        for line in report_lines:
            click.echo(f"  {line.state:<8} {line.what}{f': {line.note}' if line.note else ''}")
    return _LACKING if any(line.state == "missing" for line in report_lines) else _OK


@aws.command(cls=GroupedCommand)
@click.argument("who", type=click.Choice(["person", "maker", "head", "node"]))
@REGION
@place_options
@ACCOUNT
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "cloudformation"]),
    default="json",
    help="The policy itself, or a template that creates it as a managed policy.",
)
def policy(
    *, who: str, region: str, named: Mapping[str, Any], account: str | None, form: str
) -> None:
    """Print an IAM policy: for a person, for setup, for heads or for the other instances.

    `person` allows to plan, run, watch and clean up, through heads. `setup` and `teardown` also
    need `maker`. Setup attaches `head` and `node` to the roles that it creates.
    """
    document = getattr(policies, who)(_place(account, region, named))
    if form == "cloudformation":
        document = managed_policy(f"cloudtune-{who}-{region}", document)
    click.echo(json.dumps(document, indent=2))


@aws.command(cls=GroupedCommand)
@REGION
@place_options
@TAGS
@BOUNDARY
@ACCOUNT
def template(*, region: str, named: Mapping[str, Any], account: str | None) -> None:
    """Print the CloudFormation template of `setup`, to read it or to deploy it yourself.

    Deploy it as a stack named cloudtune. Its parameters are Vpc, an id, and Subnets: ids by zone as
    JSON, for a VPC that isn't the default one.
    """
    click.echo(json.dumps(template_of(_place(account, region, named)), indent=2))


def _live(clients: Any, account: Inventory, path: Path | None, *, yes: bool) -> int:
    if account.image is None or account.group is None or not account.bucket:
        raise UsageError("setup is incomplete: see `cloudtune aws check`; nothing was done")
    ec2 = AWS.calls(Endpoint(account.place.region))
    trial_calls = live_check.LiveCheck(clients, ec2, account, time.strftime("%m%d-%H%M%S"))
    _print_identity(account)
    click.echo("This will")
    for line in trial_calls.plan():
        click.echo(f"  {line}")
    _confirm(yes=yes)
    answers = []
    for answer in trial_calls.calls():
        answers.append(answer)
        word = "ok" if answer.ok else "NOT AS EXPECTED"
        click.echo(f"{word}: {answer.call}: {answer.answer} ({answer.seconds:.1f} s)")
        if not answer.ok:
            click.echo(f"    expected: {answer.expected}")
    if path is not None:
        path.write_text(
            json.dumps(live_check.report(trial_calls, answers), indent=1) + "\n", encoding="utf-8"
        )
        click.echo(f"wrote the answers to {path}")
    return _OK if all(answer.ok for answer in answers) else _LACKING


def _look(region: str) -> tuple[Any, Inventory]:
    clients = Clients(Endpoint(region))
    return clients, load_inventory(clients, region)


def _place(account: str | None, region: str, named: Mapping[str, Any]) -> Place:
    place = _look(region)[1].place if account is None else Place(account, region, all_types())
    return replace(place, **named)


def _kms(text: str) -> str:
    if text and not _KEY.fullmatch(text):
        raise UsageError(
            f"--kms {text}: write the key's ARN, such as "
            "arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
        )
    return text


def _secrets(text: str | None) -> tuple[str, ...] | None:
    """Return the listed secrets; None if the option wasn't given."""

    def parse(item: str) -> str:
        source = SecretSource.parse(item)
        if not source.is_in_aws:
            raise UsageError(f"--secrets {source}: a file needs no right; leave it out")
        return source.place

    return _parse_list(text, parse)


def _data(text: str | None) -> tuple[str, ...] | None:
    """Return the listed addresses in S3; None if the option wasn't given."""
    return _parse_list(text, parse_address)


def _roles(text: str | None) -> tuple[str, ...] | None:
    """Return the listed ARNs of roles; None if the option wasn't given."""

    def parse(role: str) -> str:
        if not _ROLE.fullmatch(role):
            raise UsageError(f"--role {role}: write its ARN: arn:aws:iam::111122223333:role/NAME")
        return role

    return _parse_list(text, parse)


def _parse_list(text: str | None, parse: Callable[[str], str]) -> tuple[str, ...] | None:
    """Return the items of an option, each once; "none" has none, None wasn't given."""
    if text is None:
        return None
    items = () if text == "none" else _split(text)
    return tuple(dict.fromkeys(map(parse, items)))


def _path(text: str) -> str:
    if text and not (text.startswith("/") and text.endswith("/")):
        raise UsageError(f"--role-path {text}: begin and end it with /, such as /team/")
    return text


def _steps(change_set: ChangeSet, account: Inventory) -> list[str]:
    """Return what a setup would change, in words."""
    steps = [f"{verb} {name}: {PURPOSES.get(name, '')}" for verb, name in change_set.changes]
    if not change_set.is_empty and not change_set.changes:
        steps.append("update the settings of the stack")
    if not account.spot_role:
        steps.append(f"create the role of {SPOT_SERVICE}: AWS's own, needed for spot")
    return steps


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text else ()


def _tags(pairs: tuple[str, ...]) -> dict[str, str]:
    for pair in pairs:
        key, equals, _ = pair.partition("=")
        if not equals or not key or key.startswith(("aws:", "cloudtune:")):
            raise UsageError(f"--tag {pair}: write KEY=VALUE, such as team=vision")
    return dict(pair.split("=", 1) for pair in pairs)


def _print_identity(account: Inventory) -> None:
    click.echo(f"{account.caller} in {account.place.region}")


def _print_steps(steps: list[str], verb: str) -> None:
    if not steps:
        click.echo(f"nothing to {verb}")
        return
    click.echo("This will")
    for step in steps:
        click.echo(f"  {step}")


def _confirm(*, yes: bool) -> None:
    refusal = "can't ask for confirmation without a terminal, and nothing was changed"
    confirm("Go ahead?", refusal, yes=yes)
