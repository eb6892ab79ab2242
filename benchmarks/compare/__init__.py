"""Strategies compared on recorded learning curves and spot traces, in virtual time."""
