"""A run on "EC2" from computers that have an account's keys, a script, and nothing else.

Each is a network, a root and a process tree of its own, as each instance is (docs/emulator.md).
"""

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.bench import Done, wait_for
from tests.outside import Outside

BUCKET = "cloudtune-123456789012-us-east-1-an"
pytestmark = [pytest.mark.cluster, pytest.mark.walk("it boots heads and nodes from nothing")]


KEY = "wandb-of-nobody"
TOKEN = "hf-of-nobody"
ENTITY = "team-of-nobody"
NAMED = "ssm:/team/token,aws-secretsmanager:wandb"
# Without the values, as the bucket gets the script.
USES = (
    f"assert len(os.environ['WANDB_API_KEY']) == {len(KEY)}; "
    f"assert len(os.environ['HF_TOKEN']) == {len(TOKEN)}; "
    f"assert len(os.environ['WANDB_ENTITY']) == {len(ENTITY)}; "
    f"assert os.path.getsize('numbers/deep/b.bin') == {30 * 10**6}"
)
STORED = f"""
import boto3, json
ssm = boto3.client("ssm", region_name="us-east-1")
ssm.put_parameter(Name="/team/token", Value={TOKEN!r}, Type="SecureString")
secrets = boto3.client("secretsmanager", region_name="us-east-1")
secrets.create_secret(Name="wandb", SecretString=json.dumps({{"entity": {ENTITY!r}}}))
s3 = boto3.client("s3", region_name="us-east-1")
s3.create_bucket(Bucket="theirs")
for key in ("sets/one/a.bin", "sets/one/deep/b.bin", "sets/other.bin"):
    s3.put_object(Bucket="theirs", Key=key, Body=bytes({30 * 10**6}))
"""
FOUND = f"""
import boto3, gzip
s3 = boto3.client("s3", region_name="us-east-1")
for page in s3.get_paginator("list_objects_v2").paginate(Bucket={BUCKET!r}):
    for each in page.get("Contents", []):
        data = s3.get_object(Bucket={BUCKET!r}, Key=each["Key"])["Body"].read()
        data = gzip.decompress(data) if each["Key"].endswith(".gz") else data
        sealed = each["Key"].endswith("head/variables")
        if sealed or any(it in data for it in {[KEY.encode(), TOKEN.encode(), ENTITY.encode()]}):
            print(each["Key"])
"""
FROM_PYTHON = """
import cloudtune
cloudtune.run("experiment.yaml", profile="speeds.json", yes=True)
"""

GOING_ON = """
import cloudtune, json
seen = []
result = cloudtune.resume("{run}", yes=True, on_event=lambda event, commands: seen.append(event))
done = [each for each in seen if type(each).__name__ == "EpochDone"]
found = {{(each.session[:3], each.epoch) for each in done if each.seconds == 0}}
twice = [each.session for each in done if each.seconds and (each.session[:3], each.epoch) in found]
print(json.dumps([result.ended, result.best.epoch, result.best.checkpoint, bool(done), twice]))
"""

# The first trial doesn't go on before others have looked at the run, however long that takes.
UNTIL_SEEN = """import time
        time.sleep(1.5)
        is_first = cloudtune.get_context().get_trial_id() == "t00"
        give_up = time.monotonic() + 240
        while is_first and epoch == 2 and not Path("/tmp/seen").exists():
            assert time.monotonic() < give_up, "nobody looked"
            time.sleep(0.1)
"""

INTRUDER = """#!/bin/bash
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN={token}
exec python3 -c '
import ray
try:
    ray.init(address="{address}")
    print("it is in")
except BaseException as error:
    print(f"it is kept out: {{type(error).__name__}}: {{error}}")
'
"""

LAUNCH = """
import boto3, sys
ec2 = boto3.client("ec2", region_name="us-east-1")
made = ec2.run_instances(
    ImageId=ec2.describe_images(Owners=["self", "amazon"])["Images"][0]["ImageId"],
    InstanceType="m7i.large", MinCount=1, MaxCount=1, UserData={script!r}
)
print(made["Instances"][0]["InstanceId"])
"""

END = """
import boto3
boto3.client("ec2", region_name="us-east-1").terminate_instances(InstanceIds=["{instance}"])
"""


def test_one_command_from_a_laptop_to_a_model(outside: Outside) -> None:
    before = outside.instances()
    outside.python("owner", STORED)
    setup = ("cloudtune", "aws", "setup", "--yes")
    outside("owner", *setup, "--secrets", NAMED).succeeded("update NodeRole")
    outside.script_on("ann", f"import time; time.sleep(0.5); print(f'this is {{epoch=}}'); {USES}")
    with (outside.files_of("ann") / "experiment.yaml").open("a") as file:
        file.write("env: [WANDB_API_KEY]\nsecrets: {HF_TOKEN: ssm:/team/token, ")
        file.write("WANDB_ENTITY: aws-secretsmanager:wandb#entity}\n")
        file.write("data: {numbers: s3://theirs/sets/one}\n")
    planned = outside("ann", "cloudtune", "plan", "experiment.yaml", "--profile", "speeds.json")
    assert planned.code == 0, planned.err
    assert "an instance for $0.1075 an hour" in planned.out  # with a disk of 15 GB, an address
    assert outside.instances() == before, "a plan rents nothing"

    own = ("env", f"WANDB_API_KEY={KEY}")
    refused = outside("ann", *own, "cloudtune", "run", "experiment.yaml")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert outside.instances() == before

    missing = outside("ann", "cloudtune", "run", "experiment.yaml", "--yes")
    missing.refused("env: WANDB_API_KEY isn't set in this environment")
    unread = outside("ann", *own, "cloudtune", "run", "experiment.yaml", "--yes")
    unread.refused("data.numbers: instances may not read s3://theirs/sets/one: `cloudtune aws")
    assert outside.instances() == before
    named = outside("owner", *setup, "--data", "s3://theirs/sets/one")
    named.succeeded("update NodeRole", "update HeadRole")
    done = outside("ann", *own, "cloudtune", "run", "experiment.yaml", "--yes")  # and measured
    assert done.code == 0, done.out + done.err
    assert re.search(r"i-\w+ \(m7i.large, \$0.1075 an hour\) controls run ", done.err)
    assert "0 instances left (checked " in done.out
    assert "$0.1075 an hour, controls the run" in done.out
    assert outside.alive() == []

    result = outside("ann", "cloudtune", "report", "-o", "json").json
    heads = [
        instance for instance in outside.instances() if instance["run"] == f"{result['run']}.head"
    ]
    assert len(heads) == 1
    assert "Name" in heads[0]
    assert result["ended"] == "done"
    assert result["best"]["epoch"] == 8
    assert "this is epoch=8" in outside("ann", "cloudtune", "logs").out
    assert outside.python("owner", FOUND).split() == [], "the bucket has none of the values"
    assert result["run"] in outside("ann", "cloudtune", "runs").out
    again = outside("ann", "cloudtune", "plan", "experiment.yaml")
    assert again.code == 0, "the profile that the head measured is here"
    left = outside("ann", "cloudtune", "status", "--region", "us-east-1")
    assert "No instance of cloudtune is alive." in left.out


OTHERS = """
import boto3, json
boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="ours-too")
iam = boto3.client("iam", region_name="us-east-1")
who = {{"Principal": {{"Service": "ec2.amazonaws.com"}}, "Action": "sts:AssumeRole"}}
trust = {{"Version": "2012-10-17", "Statement": [{{"Effect": "Allow", **who}}]}}
made = iam.create_role(RoleName="mine", AssumeRolePolicyDocument=json.dumps(trust))
iam.put_role_policy(RoleName="mine", PolicyName="p", PolicyDocument={document!r})
iam.create_instance_profile(InstanceProfileName="my-profile")
iam.add_role_to_instance_profile(InstanceProfileName="my-profile", RoleName="mine")
iam.put_user_policy(UserName="ann", PolicyName="tunes", PolicyDocument={person!r})
print(made["Role"]["Arn"])
"""


def test_a_bucket_and_a_role_of_ones_own(outside: Outside) -> None:
    storage = ("--storage", "s3://ours-too/runs")
    outside.script_on("ann", "import time; time.sleep(0.2)")
    path = outside.files_of("ann") / "experiment.yaml"
    named = path.read_text() + "  instance_profile: my-profile\nstorage: s3://ours-too/runs\n"
    path.write_text(named)
    document, person = (
        outside("owner", "cloudtune", "aws", "policy", who, *storage).succeeded().out
        for who in ("node", "person")
    )
    own = outside.python("owner", OTHERS.format(document=document, person=person)).strip()
    run = ("cloudtune", "run", "experiment.yaml", "--profile", "speeds.json", "--yes")
    refused = outside("ann", *run).refused("storage: heads and instances may not write to s3://")
    assert f"cloud.instance_profile: heads may not give instances {own}" in refused.err
    outside("owner", "cloudtune", "aws", "setup", "--yes", *storage, "--role", own).succeeded()
    outside("ann", *run).succeeded("0 instances left (checked ")
    report = outside("ann", "cloudtune", "report", "-o", "json").json
    assert report["best"]["epoch"] == 8
    assert report["best"]["checkpoint"].startswith("s3://ours-too/runs/")


def test_run_survives_laptop_and_head(outside: Outside) -> None:
    outside.script_on("ann", UNTIL_SEEN)
    process = outside.start("ann", "python3", "-c", FROM_PYTHON)
    (node,) = wait_for_nodes(outside, 1, process)
    outside.world.cut("ann")
    process.communicate()
    run = node["run"]
    where = f"s3://{BUCKET}/cloudtune/{run}"

    script = outside.world.home / "instances" / node["id"] / "user-data"
    wait_for_console(script.with_name("console.log"), "cloudtune-node ready")
    variables = outside.world.variables()
    assert "RAY_AUTH_TOKEN" in variables, "head and node run"
    assert not {name for name in variables if name.startswith(("AWS_", "http"))}
    intruder = outside.python("owner", launching(script.read_text(), token="0" * 64)).strip()
    console = outside.world.home / "instances" / intruder / "console.log"

    enters(outside, where)
    status = outside("bob", "cloudtune", "status", "--region", "us-east-1")
    assert status.out.count(": looked after") == 2, status.out
    outside("bob", "cloudtune", "exec", where, "--", "touch", "/tmp/seen").succeeded()
    watching = outside.start("bob", "cloudtune", "watch", where)
    assert watching.stdout is not None
    for line in watching.stdout:  # it goes on without who began it
        if "promoted" in line:
            break
    else:
        raise AssertionError(watching.stderr.read() if watching.stderr else "")
    (head,) = (item for item in outside.alive() if item.get("run") == f"{run}.head")
    outside.python("owner", END.format(instance=head["id"]))
    outside.world.cut("bob")
    watching.communicate()

    data = json.loads(outside.python("bob", GOING_ON.format(run=run)).splitlines()[-1])
    ended, epoch, checkpoint, heard, twice = data
    assert (ended, epoch) == ("done", 8)
    assert checkpoint.startswith(where)
    assert heard
    assert not twice, "what was saved while no laptop followed isn't paid for again"
    wait_for_console(console, "InvalidAuthToken", "it is in")
    assert "it is in" not in console.read_text()
    outside.python("owner", END.format(instance=intruder))

    report: Done = outside("bob", "cloudtune", "report", run, "-o", "json")
    assert len({trial["trial"] for trial in report.json["trials"]}) == 4
    nodes = [item for item in outside.instances() if item.get("run") == run]
    assert {item["state"] for item in nodes} == {"terminated"}
    asked = outside.world.asked().values()
    # Not by each instance: one may go before it has booted.
    assert f"{BUCKET}.s3.us-east-1.amazonaws.com" in set().union(*asked)
    heads = [names for names in asked if "ec2.us-east-1.amazonaws.com" in names]
    assert len(asked) > len(heads) > 1


def enters(outside: Outside, run: str) -> None:
    """Somebody else of the account runs commands where trials train, and on the head."""
    words = ("--", "sh", "-c", "ls; nvidia-smi; exit 3")
    seen = outside("bob", "cloudtune", "exec", run, *words)
    assert seen.code == 3, seen.err
    assert "train.py" in seen.out
    assert "GPU-00000000" in seen.out
    outside("bob", "cloudtune", "exec", run, "head", "--", "echo", "in").succeeded("in")
    words = ("--", "python3", "-c", "print('x' * 30_000)")
    cut = outside("bob", "cloudtune", "exec", run, *words).succeeded()
    assert cut.out == "x" * 24_000
    assert "these are the first 24,000 characters" in cut.err
    begun = outside.start("bob", "cloudtune", "exec", run, "--", "sleep", "4321")
    wait_for(lambda: bool(sleeping("4321")))
    psutil.Process(begun.pid).children(recursive=True)[-1].send_signal(signal.SIGINT)
    begun.communicate(timeout=60)
    wait_for(lambda: not sleeping("4321"))


def sleeping(seconds: str) -> list[int]:
    """Return the processes, in whatever namespace, that sleep for so many seconds."""
    listed = psutil.process_iter(["pid", "cmdline"])
    return [it.info["pid"] for it in listed if it.info["cmdline"] == ["sleep", seconds]]


def wait_for_nodes(
    outside: Outside, count: int, begun_by: subprocess.Popen[str]
) -> list[dict[str, str]]:
    """Return the instances of a run other than its head, once there are n."""
    give_up = time.monotonic() + 240
    while True:
        result = [
            instance
            for instance in outside.alive()
            if not instance.get("run", ".head").endswith(".head")
        ]
        if len(result) >= count:
            return result
        if begun_by.poll() is not None or time.monotonic() > give_up:
            begun_by.kill()
            out, err = begun_by.communicate()
            raise AssertionError(f"no node was launched\n{out}\n{err}\n{outside.consoles()}")
        time.sleep(0.5)


def wait_for_console(path: Path, *words: str) -> None:
    give_up = time.monotonic() + 240
    printed = ""
    while not any(word in printed for word in words):
        assert time.monotonic() < give_up, printed
        time.sleep(0.5)
        printed = path.read_text(errors="replace") if path.exists() else ""


def launching(of_a_node: str, token: str) -> str:
    """Return what launches an intruder, who knows all that a node knows but for the token."""
    result = re.search(r"--address ([\d.]+:\d+)", of_a_node)
    assert result is not None
    script = INTRUDER.format(address=result[1], token=token)
    return LAUNCH.format(script=script)
