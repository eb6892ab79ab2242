"""`cloudtune aws`: what an account needs for cloudtune: looked at, made, taken away again."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtune.cli.options import OUTPUT
from cloudtune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.infra.aws.account.found import Found
    from cloudtune.infra.aws.account.report import Line
    from cloudtune.infra.aws.account.steps import Step

REGION = click.option("--region", default="us-east-1", show_default=True, help="Region to rent in.")
YES = click.option("-y", "--yes", is_flag=True, help="Don't ask first.")
VPC = click.option(
    "--vpc", metavar="VPC-ID", help="VPC to use (default: the region's default VPC)."
)
_OK = 0
_LACKING = 1


@click.group()
def aws() -> None:
    """Make an AWS account ready for cloudtune, look whether it is, and undo it.

    Credentials are found as the aws command finds them. What is made costs nothing while no run
    goes on but for what the bucket holds, and is the same for every machine with credentials:
    docs/aws.md.
    """


@aws.command()
@REGION
@click.option(
    "--instances",
    metavar="TYPES",
    help="Types that runs may rent, such as 'g4dn.*,g5.*' (default: as in the last setup, or all "
    "that cloudtune offers).",
)
@VPC
@YES
@OUTPUT
def setup(region: str, instances: str | None, vpc: str | None, *, yes: bool, output: str) -> int:
    """Make what runs need: a security group, two roles, a bucket. Shows it first, and asks.

    What is there already stays as it is, but for policies of another version of cloudtune.
    """
    from cloudtune.infra.aws.account import steps

    clients, found = _look(region, instances, vpc)
    wanted = list(steps.to_make(clients, found))
    if output == "json":
        if wanted and not yes:
            raise UsageError("-o json asks nothing: add --yes, or look with `cloudtune aws check`")
    else:
        _tell_who(found)
        _tell_steps("made", wanted)
        for name, why in found.unknown.items():
            click.echo(f"not known: {name}: {why}", err=True)
        if wanted:
            _confirm(yes=yes)
    for step in wanted:
        if output != "json":
            click.echo(f"making {step.what}")
        steps.done(step)
    _, after = _look(region, instances, vpc)
    left = [step.what for step in steps.to_make(clients, after)]
    if output == "json":
        made = [step.what for step in wanted]
        click.echo(json.dumps({"region": region, "made": made, "missing": left}, indent=1))
    elif left:
        click.echo(f"still missing, as far as AWS tells: {', '.join(left)}", err=True)
    else:
        click.echo(f"ready: `cloud: {{provider: aws, region: {region}}}` is all that is needed")
    return _LACKING if left else _OK


@aws.command()
@REGION
@click.option("--bucket", is_flag=True, help="Also delete the bucket, with all checkpoints.")
@VPC
@YES
def teardown(region: str, vpc: str | None, *, bucket: bool, yes: bool) -> int:
    """Take away what setup made. Shows it first, and asks.

    Refuses while instances of cloudtune are alive in the region. A bucket that holds anything
    stays, unless --bucket is given. AWS's own role for spot stays.
    """
    from cloudtune.infra.aws.account import steps
    from cloudtune.infra.aws.provider import AWS
    from cloudtune.infra.provider import Endpoint

    clients, found = _look(region, None, vpc)
    alive = AWS.calls(Endpoint(region)).ours(ended=False)
    if alive:
        raise UsageError(
            f"{alive[0].id} of run {alive[0].run or '?'} is alive in {region}"
            f"{f', and {len(alive) - 1} more' if len(alive) > 1 else ''}: `cloudtune gc --all "
            f"--region {region}` gives everything back"
        )
    wanted = list(steps.to_remove(clients, found, with_bucket=bucket))
    _tell_who(found)
    _tell_steps("taken away", wanted)
    kept = found.bucket and not any(each.what.startswith("bucket ") for each in wanted)
    if kept:
        click.echo(f"  stays: bucket {found.place.bucket}, which isn't empty (--bucket)")
    if wanted:
        _confirm(yes=yes)
    for step in wanted:
        click.echo(f"taking away {step.what}")
        steps.done(step)
    return _OK


@aws.command()
@REGION
@click.option("--instances", metavar="TYPES", hidden=True)
@VPC
@click.option(
    "--live",
    is_flag=True,
    help="Try it with one small instance for a minute (about $0.001); asks first.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    help="With --live: write the answers to this JSON file.",
)
@YES
@OUTPUT
def check(
    region: str,
    instances: str | None,
    vpc: str | None,
    report: Path | None,
    output: str,
    *,
    live: bool,
    yes: bool,
) -> int:
    """Look whether an account has all that runs need; reads, and changes nothing.

    Each line is a thing and what to do about it. Exit code 1 where something is missing. With
    --live the calls that all rests on are made, each beside what it was to answer.
    """
    from cloudtune.infra.aws.account.report import lines

    clients, found = _look(region, instances, vpc)
    if live:
        return _live(clients, found, report, yes=yes)
    told = lines(found)
    if output == "json":
        click.echo(json.dumps([vars(each) for each in told], indent=1))
    else:
        _tell_who(found)
        _tell_lines(told)
    return _LACKING if any(each.state == "missing" for each in told) else _OK


@aws.command()
@click.argument("who", type=click.Choice(["person", "maker", "head", "node"]))
@REGION
@click.option("--instances", metavar="TYPES", help="Types that runs may rent.")
def policy(who: str, region: str, instances: str | None) -> None:
    """Print the IAM policy of a person, of who sets up, of heads or of the other instances.

    A person with that of `person` plans, runs, looks on and cleans up, by heads. Who runs `setup`
    and `teardown` needs that of `maker` as well. The other two are what setup gives its roles.
    """
    from cloudtune.infra.aws.account import policies

    _, found = _look(region, instances, None)
    document = getattr(policies, who)(found.place)
    click.echo(json.dumps(document, indent=2))


def _live(clients: Any, found: Found, path: Path | None, *, yes: bool) -> int:
    from cloudtune.infra.aws.account import live
    from cloudtune.infra.aws.provider import AWS
    from cloudtune.infra.provider import Endpoint

    if found.image is None or found.group is None or not found.bucket:
        raise UsageError("setup has something to make: `cloudtune aws check`; nothing was done")
    ec2 = AWS.calls(Endpoint(found.place.region))
    made = live.Live(clients, ec2, found, time.strftime("%m%d-%H%M%S"))
    _tell_who(found)
    click.echo("This will")
    for line in made.plan():
        click.echo(f"  {line}")
    _confirm(yes=yes)
    came = []
    for each in made.calls():
        came.append(each)
        word = "ok" if each.ok else "NOT AS EXPECTED"
        click.echo(f"{word}: {each.call}: {each.came} ({each.seconds:.1f} s)")
        if not each.ok:
            click.echo(f"    expected: {each.expected}")
    if path is not None:
        path.write_text(json.dumps(live.report(made, came), indent=1) + "\n", encoding="utf-8")
        click.echo(f"the answers are in {path}")
    return _OK if all(each.ok for each in came) else _LACKING


def _look(region: str, instances: str | None, vpc: str | None) -> tuple[Any, Found]:
    from cloudtune.infra.aws.account.found import Clients, look
    from cloudtune.infra.aws.account.report import types_in_use
    from cloudtune.infra.provider import Endpoint

    clients = Clients(Endpoint(region))
    wanted = None if instances is None else tuple(t.strip() for t in instances.split(","))
    return clients, look(clients, region, types_in_use(clients, region, wanted), vpc)


def _tell_who(found: Found) -> None:
    click.echo(f"{found.who} in {found.place.region}")


def _tell_steps(word: str, steps: Sequence[Step]) -> None:
    if not steps:
        click.echo(f"nothing is to be {word}")
        return
    click.echo(f"To be {word}:")
    for step in steps:
        click.echo(f"  {step.what}{f': {step.why}' if step.why else ''}")


def _tell_lines(lines: Sequence[Line]) -> None:
    for each in lines:
        click.echo(f"  {each.state:<8} {each.what}{f': {each.note}' if each.note else ''}")


def _confirm(*, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("there is nobody to ask here: add --yes; nothing was changed")
    click.confirm("Go ahead?", abort=True)
