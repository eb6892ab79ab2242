"""The same plans by integer programming, and its solver."""
