"""The choices of a script's mutators, read without running it."""
