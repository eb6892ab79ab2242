"""`python -m cloudtune`: the command line, for a Python whose programs are on no PATH."""

from cloudtune.cli.main import main

main()
