"""Profiles: how a training script scales, measured, stored and looked up."""

if __name__ != "cloudtune.profiles":
    raise ImportError("import it as cloudtune.profiles: see docs/decisions/0001-layout.md")
