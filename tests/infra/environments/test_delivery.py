"""An instance comes by its Python: from the bucket by its role, or in its image; or it ends."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from cloudtune.errors import UsageError
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.service import stop_emulator
from cloudtune.infra.environments import delivery, release
from cloudtune.infra.environments import index as package_index
from cloudtune.infra.environments.bootstrap import Foundation, lay
from cloudtune.infra.environments.build import Built, read_built, uv_program
from cloudtune.infra.environments.cache import EnvironmentCache, is_there
from cloudtune.infra.environments.delivery import COMPLETE, MOST_BYTES, Delivery, Pack
from cloudtune.infra.environments.index import (
    export_lines,
    hosts,
    index_variables,
    read_certificates,
)
from cloudtune.infra.heads.launch import Remote
from cloudtune.infra.heads.launch import user_data as head_user_data
from cloudtune.infra.node.boot import Join, user_data
from cloudtune.infra.node.lease import first_lease
from cloudtune.model.serialization import decode, encode
from tests.aws_stand_in.account import Account, found_by_boto3, start
from tests.aws_stand_in.company_proxy import CompanyProxy
from tests.aws_stand_in.image import aws_program, write_program
from tests.builders.package_index import IndexServer
from tests.builders.servers import serving
from tests.builders.wheels import wheel
from tests.infra.mps_stand_in import write_script

PASSWORD = "tell-nobody"
READS = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/*"},
        {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::bucket"},
    ],
}
FAILED = "cloudtune-node: environment e can't be fetched from"
OR_OTHER = ", or isn't what was packed"


@dataclass(frozen=True)
class Node:
    """A machine whose user data runs here, by the folder of its programs."""

    bin: Path

    def boots(self, delivery: Delivery, **environment: str) -> tuple[int, list[str]]:
        """Run the lines before it joins; return the exit code, and what its console has."""
        return self.runs(delivery.lines(), **environment)

    def runs(self, lines: str, **environment: str) -> tuple[int, list[str]]:
        """Run lines of bash that find a Python; return the exit code, and the console."""
        script = f"set -u\n{lines}echo python=$python\n"
        done = subprocess.run(
            ["/bin/bash"],
            input=script,
            env={"PATH": f"{self.bin}:/usr/bin:/bin", "TMPDIR": str(self.bin), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            check=False,
        )
        return done.returncode, done.stdout.splitlines()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A machine whose image has a bare Python and the AWS CLI."""
    programs = tmp_path / "bin"
    programs.mkdir()
    base = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    write_script(programs / "python3", f'exec {base} "$@"')
    write_script(programs / f"python3.{sys.version_info.minor}", "exit 127")
    write_script(programs / "shutdown", 'echo "shutdown $@"')
    write_script(programs / "sleep", "exit 0")
    write_program(programs / "aws", aws_program())
    return Node(programs)


@pytest.fixture(scope="module")
def account(warm_emulators: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    home = tmp_path_factory.mktemp("strict")
    made = Account(start(home, boot_seconds=0.4))
    made.client("s3").create_bucket(Bucket="bucket")
    made.role("reads", READS)
    yield made
    made.close()
    assert stop_emulator(home, only_if_idle=False)


@pytest.fixture
def cloud(account: Account, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of a machine of the cloud that has a role; the storage is reached here."""
    found_by_boto3(account.access, monkeypatch)
    instance = account.instance("reads")
    yield {
        "AWS_ENDPOINT_URL": account.access.endpoint,
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": account.access.metadata(instance),
    }
    EmulatorControl(account.access).move_clock(2.0)
    account.client("ec2").terminate_instances(InstanceIds=[instance])


@pytest.fixture
def small(built: Built, tmp_path: Path) -> Built:
    """An environment without its files: to pack and unpack a whole one takes seconds."""
    place = tmp_path / "small" / built.place.name
    place.mkdir(parents=True)
    shutil.copy(built.place / COMPLETE, place)
    return replace(built, place=place)


def make_pack(built: Built, storage: str, into: Path | None = None) -> Pack:
    said: list[str] = []
    pack = EnvironmentCache(storage, built.place).put(built, said.append)
    assert f"packed into {storage}/environments/{built.place.name}/" in said[0]
    return pack if into is None else replace(pack, into=str(into))


def test_a_node_fetches_its_environment_by_its_role(
    built: Built, node: Node, cloud: dict[str, str], tmp_path: Path
) -> None:
    pack = make_pack(built, "s3://bucket/runs", tmp_path / "e" / built.place.name)
    code, console = node.boots(Delivery(pack=pack), **cloud)
    assert code == 0, console
    name = built.place.name
    assert console[0] == f"cloudtune-node: fetches environment {name}"
    assert console[1].startswith(f"cloudtune-node: environment {name} fetched and unpacked in ")
    assert console[2] == f"python={pack.into}/venv/bin/python"
    there = read_built(Path(pack.into))
    assert there is not None
    assert there.packages == built.packages
    assert [path.name for path in Path(pack.into).parent.iterdir()] == [name]


def test_a_lost_pack(node: Node, tmp_path: Path) -> None:
    write_script(node.bin / "aws", 'echo "download failed: $4" >&2; exit 1')
    pack = Pack("s3://bucket/none.tar.gz", "0", 1, str(tmp_path / "e"), "3.11.7", 1.0)
    code, console = node.boots(Delivery(pack=pack))
    assert code == 1
    assert console[1].startswith("download failed: s3://bucket/none.tar.gz"), "as the CLI says"
    assert console[-2:] == [f"{FAILED} s3://bucket/none.tar.gz{OR_OTHER}", "shutdown -P now"]
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize("damage", ["sha256", "bytes"])
def test_another_pack_is_not_used(small: Built, node: Node, tmp_path: Path, damage: str) -> None:
    pack = make_pack(small, str(tmp_path / "storage"), tmp_path / "e")
    if damage == "bytes":  # cut short, as by a disk that was full
        data = Path(pack.uri).read_bytes()
        Path(pack.uri).write_bytes(data[: len(data) // 2])
    else:
        pack = replace(pack, sha256="0" * 64)
    code, console = node.boots(Delivery(pack=pack))
    assert code == 1
    assert console[-2:] == [f"{FAILED} {pack.uri}{OR_OTHER}", "shutdown -P now"]
    assert not (tmp_path / "e").exists()


def test_what_is_there_already_is_not_fetched(node: Node, tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / COMPLETE).touch()
    pack = Pack("s3://bucket/x.tar.gz", "0", 1, str(tmp_path / "e"), "3.11.7", 1.0)
    assert node.boots(Delivery(pack=pack)) == (
        0,
        ["cloudtune-node: environment e is there already", f"python={tmp_path}/e/venv/bin/python"],
    )


@pytest.mark.parametrize(
    ("disk", "is_used"), [("Amazon EC2 NVMe Instance Storage", True), ("EBS", False)]
)
def test_environment_is_on_instance_disk(
    *,
    node: Node,
    small: Built,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    disk: str,
    is_used: bool,
) -> None:
    store = tmp_path / "dlami" / "nvme"
    store.mkdir(parents=True)
    monkeypatch.setattr(delivery, "INSTANCE_STORE", str(store))
    write_script(node.bin / "lsblk", f'echo "{disk}"')
    write_script(node.bin / "mountpoint", f'[ "$2" = {store} ]')
    place = tmp_path / "opt" / "environments" / "e"
    pack = make_pack(small, str(tmp_path / "storage"), place)
    code, console = node.boots(Delivery(pack=pack))
    assert code == 0, console
    assert (place / COMPLETE).exists()
    assert (store / "cloudtune" / "e").exists() is is_used
    assert place.parent.is_symlink() is is_used


def test_image_without_aws_cli_is_refused(node: Node, tmp_path: Path) -> None:
    pack = Pack("s3://bucket/x.tar.gz", "0", 1, str(tmp_path / "e"), "3.11.7", 1.0)
    (node.bin / "aws").unlink()
    write_script(node.bin / "apt-get", "exit 1")
    code, console = node.boots(Delivery(pack=pack))
    missing = "cloudtune-node: the image has no aws, which fetches the environment"
    assert (code, console[1:]) == (1, [missing, "shutdown -P now"])


def test_image_python_is_searched_and_reported(node: Node) -> None:
    code, console = node.boots(Delivery())
    assert code == 1
    assert console[0].startswith("cloudtune-node: no Python of this image has cloudtune: none of ")
    assert console[1] == "shutdown -P now"
    write_script(node.bin / f"python3.{sys.version_info.minor}", f'exec {sys.executable} "$@"')
    code, console = node.boots(Delivery())
    assert code == 0, console
    where = node.bin / f"python3.{sys.version_info.minor}"
    own = ".".join(map(str, sys.version_info[:3]))
    assert console == [f"cloudtune-node: Python {own} at {where}", f"python={where}"]


def test_a_python_that_is_named_is_the_one(node: Node, tmp_path: Path) -> None:
    mine = tmp_path / "my python"
    code, console = node.boots(Delivery(python=str(mine)))
    assert code == 1
    assert console[0] == (
        f"cloudtune-node: {mine} has no cloudtune, or isn't there (setup.python_path)"
    )
    write_script(mine, f'exec {sys.executable} "$@"')
    code, console = node.boots(Delivery(python=str(mine)))
    assert (code, console[-1]) == (0, f"python={mine}")


def test_a_command_that_fails_ends_it(node: Node, tmp_path: Path) -> None:
    write_script(node.bin / "python3", f'exec {sys.executable} "$@"')
    done = tmp_path / "done it"
    commands = (f"echo 'a b' > '{done}' && cat '{done}'", "false", f"rm '{done}'")
    code, console = node.boots(Delivery(commands=commands))
    assert code == 1
    assert console[2:] == ["a b", "cloudtune-node: setup.commands failed: false", "shutdown -P now"]
    assert done.exists()


def test_commands_wait_for_the_upgrades_of_the_boot(node: Node, tmp_path: Path) -> None:
    write_script(node.bin / "python3", f'exec {sys.executable} "$@"')
    looks = tmp_path / "looks"
    busy = f"[ $(wc -l < {looks}) -gt 2 ] || echo activating; echo inactive; exit 3"
    write_script(node.bin / "systemctl", f"[ $1 = stop ] || {{ echo >> {looks}; {busy}; }}")
    delivery = Delivery(commands=(f"wc -l < {looks}; cat $APT_CONFIG",))
    code, console = node.boots(delivery)
    assert (code, console[2:4]) == (0, ["3", 'DPkg::Lock::Timeout "600";']), console
    looks.write_text("")
    console = node.boots(delivery, CLOUDTUNE_MACHINE="i-1", APT_CONFIG="/dev/null")[1]
    assert console[2] == "0", "an emulated machine shares its systemd"


def test_user_data_have_room_or_are_refused() -> None:
    uri = f"s3://{'b' * 63}/{'k' * 200}/environments/{'0' * 20}/1766400000-00000000.tar.zst"
    into = f"/opt/cloudtune/environments/{'0' * 20}"
    pack = Pack(uri, "0" * 64, 10**10, into, "3.11.14", 99.9)
    room = Delivery(pack=pack, commands=("x" * 1000, "y" * 500))
    room.check()
    join = Join("172.31.255.255:65535", "i" * 40, 16, 1_800_000_000.0)
    whole = user_data(join, first_lease(1_800_000_000.0, 1_800_007_200.0), "t" * 64, room)
    assert len(whole.encode()) < MOST_BYTES
    with pytest.raises(UsageError, match=r"setup.commands: \d+ bytes too long"):
        Delivery(pack=pack, commands=("x" * 14_000,)).check()


def test_a_packs_manifest(small: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = EnvironmentCache(str(tmp_path), small.place)
    assert cache.pack() is None

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(EnvironmentCache, "_write", crash)
        with pytest.raises(KeyboardInterrupt):
            cache.put(small, print)
    assert cache.pack() is None
    folder = tmp_path / "environments" / small.place.name
    old = folder / "1700000000-0.tar.zst"
    old.touch()
    pack = cache.put(small, lambda _line: None)
    assert cache.pack() == pack
    assert not old.exists(), "what a crash has left goes a day later"
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [Path(pack.uri).name, "manifest.json"]
    )
    assert is_there(pack)
    os.truncate(pack.uri, 10)
    assert cache.pack() is None
    assert not is_there(pack)


def test_a_controller_unpacks_what_it_has_not_built(small: Built, tmp_path: Path) -> None:
    pack = make_pack(small, str(tmp_path / "storage"))
    elsewhere = tmp_path / "e" / small.place.name
    cache = EnvironmentCache(str(tmp_path / "storage"), elsewhere)
    there = cache.bring(replace(pack, into=str(elsewhere)))
    assert (there.place, there.packages) == (elsewhere, small.packages)


@pytest.fixture
def index(offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the tiny wheels, which are those that this release has recorded."""
    folder = tmp_path / "index"
    shutil.copytree(offline, folder)
    script = f'#!/bin/sh\nexec {uv_program()} "$@"\n'
    number = version("uv")
    wheel(folder, "uv", number, {f"uv-{number}.data/scripts/uv": script})
    lines = []
    for path in folder.iterdir():
        name, number, _ = path.name.split("-", 2)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"{canonicalize_name(name)}=={number} --hash=sha256:{digest}\n")
    (tmp_path / "hashes.txt").write_text("# of the tests\n" + "".join(lines))
    monkeypatch.setattr(release, "HASHES", tmp_path / "hashes.txt")
    return folder


def install(node: Node, head: Foundation, index: Path) -> tuple[int, list[str]]:
    """Install what a head needs from a folder of wheels; return exit code and console."""
    uv = {name: value for name, value in os.environ.items() if name.startswith("UV_")}
    uv["UV_FIND_LINKS"] = str(index)
    base = str(Path(sys.base_prefix) / "bin")  # where uv finds a Python of this version
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}
    return node.runs(head.lines(), **uv, **pip, PATH=f"{node.bin}:/usr/bin:/bin:{base}")


def other_bytes(index: Path, name: str) -> None:
    """Swap a package for another under the same name and version."""
    (path,) = index.glob(f"{name}-*.whl")
    wheel(index, name, version(name), {"stolen.pth": "import os"})
    assert [path] == list(index.glob(f"{name}-*.whl"))


def another_torch(monkeypatch: pytest.MonkeyPatch, index: Path) -> None:
    """Let this machine have another torch than the release."""
    there = {"ray": version("ray"), "torch": "2.6.0"}
    monkeypatch.setattr("cloudtune.infra.environments.spec.version", there.get)
    wheel(index, "torch", "2.6.0")


@pytest.mark.parametrize(("name", "torch"), [("cmaes", "same"), ("cmaes", "other"), ("uv", "same")])
def test_a_head_refuses_a_package_with_other_bytes(
    *,
    node: Node,
    index: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    torch: str,
) -> None:
    if torch == "other":
        another_torch(monkeypatch, index)
    head = lay(str(tmp_path / "storage"), tmp_path / "opt")
    if name != "uv":
        (node.bin / "uv").symlink_to(uv_program())
    other_bytes(index, name)
    code, console = install(node, head, index)
    assert code == 1
    refusal = (
        f"cloudtune-head: {name}=={version(name)} doesn't match its recorded hash: the index, or a "
        "proxy, serves another file than this release was tested with; nothing was installed"
    )
    assert console[-2:] == [refusal, "shutdown -P now"]
    assert not list(Path(head.place).glob("venv/lib/*/site-packages/*.dist-info"))
    assert not list(tmp_path.rglob("stolen.pth"))


def test_head_installs_only_hashed_packages(node: Node, index: Path, tmp_path: Path) -> None:
    lines = release.HASHES.read_text().splitlines()
    release.HASHES.write_text("\n".join(line for line in lines if "cmaes" not in line))
    code, console = install(node, lay(str(tmp_path / "storage"), tmp_path / "opt"), index)
    assert code == 1
    assert "no trusted hash was provided for: `cmaes`" in " ".join(console)
    assert console[-2:] == ["cloudtune-head: cloudtune can't be installed", "shutdown -P now"]


def test_other_torch_is_unhashed_and_noted(
    node: Node, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another_torch(monkeypatch, index)
    head = lay(str(tmp_path / "storage"), tmp_path / "opt")
    assert head == decode(Foundation, encode(head))
    code, console = install(node, head, index)
    assert code == 0, console
    own = version("torch").partition("+")[0]
    assert (
        "cloudtune-head: installed without recorded hashes: torch==2.6.0 and what it needs, as "
        f"this release was tested with torch=={own}"
    ) in console
    built = read_built(Path(head.place))
    assert built is not None
    assert "torch==2.6.0" in built.packages


def test_a_head_without_cloudtune_makes_its_own_environment(
    index: Path, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, root = str(tmp_path / "storage"), tmp_path / "opt"
    laid = lay(storage, root)
    with monkeypatch.context() as patch:  # a laptop with other patch levels
        patch.setattr(platform, "python_version", lambda: "3.11.2")
        other = {"ray": "2.58.0", "torch": version("torch")}
        patch.setattr("cloudtune.infra.environments.spec.version", other.get)
        assert laid == lay(storage, root) == decode(Foundation, encode(laid))
        other["torch"] = "2.6.0"
        assert lay(storage, root).place != laid.place, "the script was tried with that one"
    wheel(index, "cmaes", "99.0")  # released since
    code, console = install(node, laid, index)
    assert code == 0, console
    python = f"{laid.place}/venv/bin/python"
    own = ".".join(map(str, sys.version_info[:3]))
    assert console[-2:] == [f"cloudtune-head: Python {own} at {python}", f"python={python}"]
    there = read_built(Path(laid.place))
    assert there is not None
    assert f"cmaes=={version('cmaes')}" in there.packages
    result = [python, "-I", "-c", "import cloudtune; print(cloudtune.__file__)"]
    where = subprocess.run(result, capture_output=True, text=True, check=True).stdout
    assert where.startswith(laid.place)
    assert not list(root.glob("*.source"))
    asked = Remote("s3://bucket/runs/x", "aws", "us-east-1", 2e9, 1.9e9, 0.1, 1, encode(laid))
    assert laid.lines() in head_user_data(asked)
    assert len(head_user_data(asked).encode()) < MOST_BYTES - 500, "longer paths than here"
    pack = EnvironmentCache(storage, Path(laid.place)).put(there, lambda _line: None)
    shutil.rmtree(laid.place)
    again = lay(storage, root)
    assert again.packed == pack, "another head fetches what the first one has made"
    code, console = node.runs(again.lines())
    assert code == 0, console
    assert read_built(Path(laid.place)) == there


@pytest.fixture
def company(index: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A company's index of those wheels alone, by TLS with a CA of its own and a password.

    Yields the variables that name it.
    """
    behind = CompanyProxy("", tmp_path)
    served = IndexServer(index, behind.context("127.0.0.2"), f"user:{PASSWORD}")
    with serving(served):
        yield {
            "PIP_INDEX_URL": f"https://user:{PASSWORD}@127.0.0.2:{served.server_address[1]}/simple",
            "REQUESTS_CA_BUNDLE": str(behind.bundle),
        }
    behind.server_close()


@pytest.mark.parametrize("with_certificates", [True, False])
def test_a_head_installs_from_a_company_s_index(
    *,
    node: Node,
    company: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    with_certificates: bool,
) -> None:
    monkeypatch.setattr(package_index, "_PLACE", str(tmp_path / "certificates.pem"))
    certificates = tmp_path / "sent.pem"
    certificates.write_bytes(read_certificates(company))
    write_script(node.bin / "aws", f'[ "$4" = s3://b/c.pem ] && cp {certificates} "$5"')
    lines = export_lines(company, "s3://b/c.pem" if with_certificates else "")
    head = lay(str(tmp_path / "storage"), tmp_path / "opt")
    base = str(Path(sys.base_prefix) / "bin")  # where uv finds a Python of this version
    offline = {"UV_PYTHON_DOWNLOADS": "never", "UV_CACHE_DIR": str(tmp_path / "cache")}
    path = f"{node.bin}:/usr/bin:/bin:{base}"
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0"}
    code, console = node.runs(f"{lines}{head.lines()}", **offline, **nowhere, PATH=path)
    assert code == (0 if with_certificates else 1), console
    if with_certificates:
        assert f"python={head.place}/venv/bin/python" in console
    assert hosts(index_variables(company)) == ["127.0.0.2"]
    assert PASSWORD not in " ".join(console)


def test_local_index_is_not_sent() -> None:
    there = "https://index.example.com/simple"
    assert index_variables({"PIP_INDEX_URL": "http://localhost:3141/root/pypi"}) == {}
    assert index_variables({"UV_DEFAULT_INDEX": f"ours={there}"})["PIP_INDEX_URL"] == there
    assert index_variables({"UV_INDEX_OURS_PASSWORD": "x"}) == {"UV_INDEX_OURS_PASSWORD": "x"}
    with pytest.raises(UsageError, match=r"PIP_CERT: /nowhere can't be read"):
        read_certificates({"PIP_INDEX_URL": there, "PIP_CERT": "/nowhere"})


def test_head_uses_cloudtune_of_image(node: Node, tmp_path: Path) -> None:
    write_script(node.bin / "python3", f'exec {sys.executable} "$@"')
    code, console = node.runs(lay(str(tmp_path / "storage"), tmp_path / "opt").lines())
    assert (code, console[-1]) == (0, f"python={node.bin}/python3"), console
    assert not (tmp_path / "opt").exists()
