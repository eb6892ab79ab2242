"""An existing Ray cluster as a cloud: its nodes' GPUs are reserved through Ray."""
