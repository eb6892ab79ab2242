"""Planners: decide before a run, and at its barriers, which instances to rent, when, for whom."""

if __name__ != "cloudtune.planners":
    raise ImportError("import it as cloudtune.planners: see docs/decisions/0001-layout.md")
