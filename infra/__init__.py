"""The outside world: clouds behind one seam, Ray's autoscaler, instances and trial workers."""

if __name__ != "cloudtune.infra":
    raise ImportError("import it as cloudtune.infra: see docs/decisions/0001-layout.md")
