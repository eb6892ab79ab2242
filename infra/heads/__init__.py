"""Runs that an instance of their own, the head, carries, and not their user's machine."""
