"""Planners: which instances to rent, when and for which trials, before a run begins."""

if __name__ != "cloudtune.planners":
    raise ImportError("import it as cloudtune.planners: see docs/decisions/0001-layout.md")
