"""Runs that follow a plan of stages, and replan the rest."""
