"""What a raylet starts in place of one of Ray's agents that is unused: it serves nothing.

A raylet joins its cluster once its agents have said at which ports they serve, and ends with them.
Ray's own take a second or more to import, and 70 MB. Run as a file, with the standard library
alone: it has to start in no time.
"""

import argparse
import os
import time
from pathlib import Path

_LOOK_SECONDS = 1.0


def main() -> None:
    """Say that the ports are none, and stay as long as the raylet does."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--no-port", action="append", help="the name of a port")
    parser.add_argument("--as", dest="none", help="what says that there is none")
    parser.add_argument("--session-dir", type=Path)
    options, _ = parser.parse_known_args()  # the others are those of Ray's agent
    raylet = os.getppid()
    node = os.environ["RAY_NODE_ID"]
    for name in options.no_port:
        path = options.session_dir / f"{name}_{node}"
        written = path.with_suffix(f".{os.getpid()}")
        written.write_text(options.none)
        written.rename(path)
    while os.getppid() == raylet:
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    main()
