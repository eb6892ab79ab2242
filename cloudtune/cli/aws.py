"""`cloudtune aws`: check, create and delete what cloudtune needs in an AWS account."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtune import aws_session
from cloudtune.cli.options import OUTPUT
from cloudtune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.infra.aws.account.found import Found
    from cloudtune.infra.aws.account.report import Line
    from cloudtune.infra.aws.account.steps import Step

REGION = click.option(
    "--region",
    default=aws_session.region,
    help="Region to rent in (default: of AWS_REGION or the AWS profile, else us-east-1).",
)
YES = click.option("-y", "--yes", is_flag=True, help="Don't ask first.")
VPC = click.option(
    "--vpc", metavar="VPC-ID", help="VPC to use (default: the region's default VPC)."
)
_OK = 0
_LACKING = 1


@click.group()
def aws() -> None:
    """Set up an AWS account for cloudtune, check it, and undo the setup.

    Uses the same credentials as the aws command. Between runs, the resources cost nothing except
    for the data in the bucket. Every machine with credentials shares them: docs/aws.md.
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
    """Create what runs need: a security group, two roles, a bucket. Lists it and asks first.

    Existing resources stay unchanged, except for policies of another version of cloudtune.
    """
    from cloudtune.infra.aws.account import steps

    clients, account = _look(region, instances, vpc)
    wanted = list(steps.to_make(clients, account))
    if output == "json":
        if wanted and not yes:
            raise UsageError(
                "-o json can't ask for confirmation: add --yes, or use `cloudtune aws check`"
            )
    else:
        _print_identity(account)
        _print_steps("create", wanted)
        for name, why in account.unknown.items():
            click.echo(f"unknown: {name}: {why}", err=True)
        if wanted:
            _confirm(yes=yes)
    for step in wanted:
        if output != "json":
            click.echo(f"creating {step.what}")
        steps.done(step)
    _, after = _look(region, instances, vpc)
    left = [step.what for step in steps.to_make(clients, after)]
    if output == "json":
        created = [step.what for step in wanted]
        click.echo(json.dumps({"region": region, "made": created, "missing": left}, indent=1))
    elif left:
        click.echo(f"still missing, according to AWS: {', '.join(left)}", err=True)
    else:
        click.echo(f"ready: use `cloud: {{provider: aws, region: {region}}}` in an experiment")
    return _LACKING if left else _OK


@aws.command()
@REGION
@click.option("--bucket", is_flag=True, help="Also delete the bucket, with all checkpoints.")
@VPC
@YES
def teardown(region: str, vpc: str | None, *, bucket: bool, yes: bool) -> int:
    """Delete what setup created. Lists it and asks first.

    Refuses while instances of cloudtune are alive in the region. Keeps a bucket that isn't empty,
    unless you add --bucket. Keeps AWS's own role for spot instances.
    """
    from cloudtune.infra.aws.account import steps
    from cloudtune.infra.aws.provider import AWS
    from cloudtune.infra.provider import Endpoint

    clients, account = _look(region, None, vpc)
    alive = AWS.calls(Endpoint(region)).ours(ended=False)
    if alive:
        raise UsageError(
            f"{alive[0].id} of run {alive[0].run or '?'} is alive in {region}"
            f"{f', and {len(alive) - 1} more' if len(alive) > 1 else ''}: `cloudtune gc --all "
            f"--region {region}` terminates all instances"
        )
    wanted = list(steps.to_remove(clients, account, with_bucket=bucket))
    _print_identity(account)
    _print_steps("delete", wanted)
    kept = account.bucket and not any(step.what.startswith("bucket ") for step in wanted)
    if kept:
        click.echo(
            f"  keep bucket {account.place.bucket}: it isn't empty (delete it with --bucket)"
        )
    if wanted:
        _confirm(yes=yes)
    for step in wanted:
        click.echo(f"deleting {step.what}")
        steps.done(step)
    return _OK


@aws.command()
@REGION
@click.option("--instances", metavar="TYPES", hidden=True)
@VPC
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
    """Check whether an account has everything that runs need. Changes nothing.

    Each line names a resource and what to do about it. Exits with 1 if something is missing. --live
    makes the calls that runs depend on, and compares the answers with the expected ones.
    """
    from cloudtune.infra.aws.account.report import lines

    clients, account = _look(region, instances, vpc)
    if live:
        return _live(clients, account, report, yes=yes)
    report_lines = lines(account)
    if output == "json":
        click.echo(json.dumps([vars(line) for line in report_lines], indent=1))
    else:
        _print_identity(account)
        _print_lines(report_lines)
    return _LACKING if any(line.state == "missing" for line in report_lines) else _OK


@aws.command()
@click.argument("who", type=click.Choice(["person", "maker", "head", "node"]))
@REGION
@click.option("--instances", metavar="TYPES", help="Types that runs may rent.")
def policy(who: str, region: str, instances: str | None) -> None:
    """Print an IAM policy: for a person, for setup, for heads or for the other instances.

    `person` allows to plan, run, watch and clean up, through heads. `setup` and `teardown` also
    need `maker`. Setup attaches `head` and `node` to the roles that it creates.
    """
    from cloudtune.infra.aws.account import policies

    _, account = _look(region, instances, None)
    document = getattr(policies, who)(account.place)
    click.echo(json.dumps(document, indent=2))


def _live(clients: Any, account: Found, path: Path | None, *, yes: bool) -> int:
    from cloudtune.infra.aws.account import live
    from cloudtune.infra.aws.provider import AWS
    from cloudtune.infra.provider import Endpoint

    if account.image is None or account.group is None or not account.bucket:
        raise UsageError("setup is incomplete: see `cloudtune aws check`; nothing was done")
    ec2 = AWS.calls(Endpoint(account.place.region))
    trial_calls = live.Live(clients, ec2, account, time.strftime("%m%d-%H%M%S"))
    _print_identity(account)
    click.echo("This will")
    for line in trial_calls.plan():
        click.echo(f"  {line}")
    _confirm(yes=yes)
    answers = []
    for answer in trial_calls.calls():
        answers.append(answer)
        word = "ok" if answer.ok else "NOT AS EXPECTED"
        click.echo(f"{word}: {answer.call}: {answer.came} ({answer.seconds:.1f} s)")
        if not answer.ok:
            click.echo(f"    expected: {answer.expected}")
    if path is not None:
        path.write_text(
            json.dumps(live.report(trial_calls, answers), indent=1) + "\n", encoding="utf-8"
        )
        click.echo(f"wrote the answers to {path}")
    return _OK if all(answer.ok for answer in answers) else _LACKING


def _look(region: str, instances: str | None, vpc: str | None) -> tuple[Any, Found]:
    from cloudtune.infra.aws.account.found import Clients, look
    from cloudtune.infra.aws.account.report import types_in_use
    from cloudtune.infra.provider import Endpoint

    clients = Clients(Endpoint(region))
    wanted = None if instances is None else tuple(t.strip() for t in instances.split(","))
    return clients, look(clients, region, types_in_use(clients, region, wanted), vpc)


def _print_identity(account: Found) -> None:
    click.echo(f"{account.who} in {account.place.region}")


def _print_steps(verb: str, steps: Sequence[Step]) -> None:
    if not steps:
        click.echo(f"nothing to {verb}")
        return
    click.echo(f"This will {verb}:")
    for step in steps:
        click.echo(f"  {step.what}{f': {step.why}' if step.why else ''}")


def _print_lines(lines: Sequence[Line]) -> None:
    for line in lines:
        click.echo(f"  {line.state:<8} {line.what}{f': {line.note}' if line.note else ''}")


def _confirm(*, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "can't ask for confirmation without a terminal: add --yes; nothing was changed"
        )
    click.confirm("Go ahead?", abort=True)
