"""What a node's raylet starts in place of Ray's dashboard agent: a process that serves nothing.

A raylet joins its cluster once its dashboard agent has said at which ports it serves, and ends with
it. Ray's own takes seconds to import, and 70 MB, for reports that nobody reads here. Run as a file,
with the standard library alone: it has to start in no time.
"""

import argparse
import os
import time
from pathlib import Path

# Files of a session in which a raylet looks for the ports, and Ray's word for none.
_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
_NONE = "-1"
_LOOK_SECONDS = 1.0


def main() -> None:
    """Say that there are no ports, and stay as long as the raylet does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--session-dir", type=Path, required=True)
    options, _ = parser.parse_known_args()
    raylet = os.getppid()
    node = os.environ["RAY_NODE_ID"]
    for name in _PORTS:
        path = options.session_dir / f"{name}_{node}"
        written = path.with_suffix(f".{os.getpid()}")
        written.write_text(_NONE)
        written.rename(path)
    while os.getppid() == raylet:
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    main()
