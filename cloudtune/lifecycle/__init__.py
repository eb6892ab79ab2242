"""A run from its first request to its last instance."""
