"""`python -m cloudtune`: the command line, for a Python whose programs aren't on the PATH."""

from cloudtune.cli.main import main

main()
