"""Runs that follow a plan of stages, and replan what is ahead."""
