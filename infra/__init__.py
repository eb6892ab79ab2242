"""The outside world: EC2 and its emulator, Ray's autoscaler, the machines and the trial workers."""

if __name__ != "cloudtune.infra":
    raise ImportError("import it as cloudtune.infra: see docs/decisions/0001-layout.md")
