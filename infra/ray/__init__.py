"""A Ray cluster that somebody else runs, as a cloud: its nodes' GPUs are reserved through Ray."""
