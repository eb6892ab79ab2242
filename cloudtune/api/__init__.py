"""The Python interface for scripts and notebooks: plans, runs and their results."""
