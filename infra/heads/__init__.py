"""Runs that a separate instance, the head, carries instead of the user's machine."""
