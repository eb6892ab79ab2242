"""Strategies: which configurations, how far to train each, who goes on."""
