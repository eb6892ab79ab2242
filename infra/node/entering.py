"""A person's command on an instance, where it finds what trials find: folder and variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# The zygote is where trials come from: it has their folder, and the environment of the node's Ray.
# Without one, as on a machine that boots, the command runs where it is.
_SCRIPT: Final = r"""
for process in $(pgrep -f 'cloudtune[.]infra[.]node[.]zygote'); do
  [[ -z $mark ]] || grep -qsz "^$mark\$" "/proc/$process/environ" || continue
  cd "/proc/$process/cwd" 2> /dev/null && cd "$(pwd -P)" || continue
  mapfile -d '' variables < "/proc/$process/environ"
  exec env -i "${variables[@]}" TERM="${TERM:-dumb}" "$@"
done
exec "$@"
"""
SHELL: Final = ("bash", "-i")


def entering(words: Sequence[str], mark: str = "") -> list[str]:
    """Return the command that runs a person's command among an instance's trials.

    `mark`: a variable of the instance's processes, where others of the machine aren't its own.
    """
    return ["bash", "-c", f"mark='{mark}'{_SCRIPT}", "cloudtune", *words]
