"""The experiment file: its schema, its search space, and every mistake in it with its line."""

from cloudtune.experiment.schema import Experiment

__all__ = ["Experiment"]
