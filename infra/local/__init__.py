"""This machine as a cloud of one instance."""
