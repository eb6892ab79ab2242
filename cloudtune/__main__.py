"""`python -m cloudtune` is the command line."""

from cloudtune.cli import main

if __name__ == "__main__":
    main()
