"""The resources of an AWS account for cloudtune: checked, created and deleted."""
