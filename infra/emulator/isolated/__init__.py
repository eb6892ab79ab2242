"""Instances in namespaces of their own: an address, a root, processes that see no others."""
