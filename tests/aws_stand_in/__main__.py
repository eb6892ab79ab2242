"""Run a part of the stand-in: `python tests/aws_stand_in PART OPTIONS`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])  # not this folder: wherever one is


def main() -> int | None:
    """Run the part that the command line names.

    emulator    EC2 and the services around it, with the options of the product's emulator
    isolated    the same in the namespaces of an isolated cloud, machines in their own
    cloud       the first process of an isolated cloud
    computer    a command on a computer outside an isolated cloud
    """
    part, *arguments = sys.argv[1:]
    if part == "cloud":
        from tests.aws_stand_in import world

        return world.main(arguments)
    if part == "computer":
        from tests.aws_stand_in import computer

        return computer.main(arguments)
    from cloudtune.infra.emulator import service
    from tests.aws_stand_in import isolated, rules

    kind = {"emulator": rules.StandIn, "isolated": isolated.IsolatedStandIn}[part]
    service.main(arguments, kind())
    return None


if __name__ == "__main__":
    sys.exit(main())
