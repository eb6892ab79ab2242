"""`python -m cloudtune` is the command line."""

from cloudtune.cli.main import main

if __name__ == "__main__":
    main()
