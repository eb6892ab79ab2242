"""Strategies: which configurations, how far to train each, which go on."""
