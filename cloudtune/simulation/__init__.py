"""Strategies compared on recorded learning curves, in virtual time."""
