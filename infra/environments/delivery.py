"""How an instance gets its Python: the lines of its user data before it joins.

It fetches its environment, or else looks for a Python in its image that has cloudtune. Then the
user's own commands run. A failure ends the machine, with one line on its console.

The AWS CLI fetches packs with the instance's role: it handles credentials, regions and retries. A
presigned URL would work without it, but would differ each time, and a repeated launch with the same
client token must have the same user data.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudtune.errors import UsageError
from cloudtune.infra.environments.index import CERTIFICATES_VARIABLE, export_lines

# The limit of user data before encoding (EC2 user guide, Run commands when you launch, 2026-11).
MOST_BYTES = 16 * 1024
# The whole seconds that an instance took for this, which is part of its boot.
SECONDS_VARIABLE = "CLOUDTUNE_SETUP_SECONDS"
_REST_BYTES = 2048  # the lease and the command that joins
# Where AWS's images mount the instance store at boot.
INSTANCE_STORE = "/opt/dlami/nvme"
# The file that marks a complete environment.
COMPLETE = ".complete"
_HAS_US = 'import sys, importlib.util as u; sys.exit(u.find_spec("cloudtune") is None)'


def python_path(place: Path) -> Path:
    """Return the interpreter of the environment in this folder."""
    return place / "venv" / "bin" / "python"


@dataclass(frozen=True)
class Pack:
    """A packed environment: its address, its length, and the folder to unpack it to.

    `version` is that of its Python, `seconds` the time of building and packing.
    """

    uri: str
    sha256: str
    bytes: int
    into: str
    version: str
    seconds: float


@dataclass(frozen=True)
class Delivery:
    """What an instance does before it joins: fetch `pack`, or find a Python; then `commands`.

    `python` is the Python to use, from the image or from an existing environment; "" to look for
    one.
    """

    python: str = ""
    commands: tuple[str, ...] = ()
    pack: Pack | None = None

    def lines(self) -> str:
        """Return the lines of bash after which `$python` has cloudtune."""
        if self.pack is not None:
            python = fetch_lines(self.pack) + activate_lines(Path(self.pack.into))
        else:
            places = [self.python] if self.python else image_pythons()
            missing = f"no Python of this image has cloudtune: none of {', '.join(places)}"
            if self.python:
                missing = f"{self.python} has no cloudtune, or isn't there (setup.python_path)"
            python = (
                f"{search_lines(places)}"
                f'[ -n "$python" ] || end {shlex.quote(missing)}\n'
                'echo "cloudtune-node: $("$python" -V 2>&1) at $python"\n'
            )
        took = f"export {SECONDS_VARIABLE}=$SECONDS\n" if self.pack or self.commands else ""
        runs = 'echo "cloudtune-node: runs setup.commands"\nawait_apt\n' if self.commands else ""
        for command in self.commands:
            failed = shlex.quote(f"setup.commands failed: {command}")
            runs += f"bash -c {shlex.quote(command)} < /dev/null || end {failed}\n"
        return AWAIT_APT + end_lines("cloudtune-node") + python + runs + took

    def check(self) -> None:
        """Check that it fits into the user data of an instance.

        Raises:
            UsageError: it doesn't.
        """
        index = export_lines(os.environ, os.environ.get(CERTIFICATES_VARIABLE, ""))
        over = len(f"{self.lines()}{index}".encode()) + _REST_BYTES - MOST_BYTES
        if over > 0:
            raise UsageError(
                f"setup.commands: {over} bytes too long for the user data of an instance; put them "
                "into a script, and keep that where instances reach it"
            )


def end_lines(program: str) -> str:
    """Return lines of bash with which a script ends its machine, with a reason."""
    return (
        "end() {\n"
        f'  echo "{program}: $1"\n'
        "  command -v send_boot_log > /dev/null && sleep 1 && send_boot_log\n"
        "  shutdown -P now; exit 1\n"
        "}\n"
    )


def image_pythons() -> list[str]:
    """Return where to look for a Python in an image: one made for us, one like this, any."""
    own = f"python3.{sys.version_info.minor}"
    return ["/opt/cloudtune/python", "/opt/cloudtune/python/bin/python3", own, "python3"]


def search_lines(places: Sequence[str]) -> str:
    """Return lines of bash after which `$python` is the first that has cloudtune, or ""."""
    return (
        f"for place in {shlex.join(places)}; do\n"
        f'  python=$(command -v "$place") && "$python" -c {shlex.quote(_HAS_US)} 2> /dev/null'
        " && break\n"
        "  python=\n"
        "done\n"
    )


def remark() -> str:
    """Return what a person should know of what this instance's boot took; "" where it is little.

    Rounded, so that instances that took much the same tell the same.
    """
    seconds = 10 * round(int(os.environ.get(SECONDS_VARIABLE) or 0) / 10)
    return f"setup takes about {seconds} s of each instance's boot" if seconds else ""


# Waits for the upgrades that Ubuntu makes at boot: they hold apt's locks. An emulated machine
# shares its systemd.
AWAIT_APT = """\
await_apt() {
  [ -z "${CLOUDTUNE_MACHINE:-}" ] || return 0
  export APT_CONFIG=$(mktemp)
  echo 'DPkg::Lock::Timeout "600";' > "$APT_CONFIG"
  systemctl stop apt-daily.timer apt-daily-upgrade.timer
  while [[ $(systemctl is-active apt-daily{,-upgrade}.service) == *activating* ]]; do sleep 1; done
} 2> /dev/null
"""

_FETCH = r"""fetch() {
  rm -rf "$into" "$into.part"; mkdir -p "$into.part" || return
  { get | tee /dev/fd/3 | sha256sum > "$into.sum"; } 3>&1 |
    tar -I "$zip" -xf - --no-same-owner -C "$into.part" &&
    grep -q "^$sum " "$into.sum" && mv "$into.part" "$into"
}
own_disk() {
  [ -d "${store%/*}" ] && lsblk -ndo MODEL | grep -q 'Instance Storage' || return
  for second in {1..20}; do mountpoint -q "$store" && return; sleep 1; done
  return 1
}
install() {
  await_apt
  { apt-get update -qq; apt-get install -qq -y $1 || dnf install -q -y $1; } > /dev/null 2>&1
}
if [ -e "$into/.complete" ]; then
  echo "cloudtune-node: environment $name is there already"
else
  echo "cloudtune-node: fetches environment $name"
  command -v $zip > /dev/null || install $zip
  command -v $client > /dev/null || install awscli
  command -v $client > /dev/null || end "the image has no $client, which fetches the environment"
  set -o pipefail
  place=$(dirname "$into")
  if [ ! -e "$place" ] && own_disk; then
    mkdir -p "$store/cloudtune" "$(dirname "$place")" && ln -s "$store/cloudtune" "$place"
  fi
  for pause in 1 4 10 0; do fetch && break; sleep $pause; done
  [ -d "$into" ] || end "environment $name can't be fetched from $uri, or isn't what was packed"
  rm -f "$into.sum"
  echo "cloudtune-node: environment $name fetched and unpacked in $SECONDS s"
fi
"""


def fetch_lines(pack: Pack) -> str:
    """Return lines of bash that fetch a pack, and end the machine if that fails.

    It is unpacked onto the instance store if the image mounts one: for some gigabytes a gp3 volume
    (125 MB/s) is slower than the network.
    """
    from_bucket = pack.uri.startswith("s3://")
    get = 'aws s3 cp --only-show-errors "$uri" -' if from_bucket else 'cat "$uri"'
    names = {
        "uri": pack.uri,
        "into": pack.into,
        "sum": pack.sha256,
        "name": Path(pack.into).name,
        "store": INSTANCE_STORE,
        "zip": zip_program(pack.uri),
        "client": get.partition(" ")[0],
    }
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in names.items())
    return f"{variables}\nget() {{ {get}; }}\n{_FETCH}"


def zip_program(uri: str) -> str:
    """Return the program that compresses and decompresses a pack."""
    return "zstd" if uri.endswith(".zst") else "gzip"


def activate_lines(place: Path) -> str:
    """Return lines of bash that use the Python of the environment in that folder."""
    python = python_path(place)
    path = shlex.quote(str(python.parent))
    return f"python={shlex.quote(str(python))}\nexport PATH={path}:$PATH\n"
