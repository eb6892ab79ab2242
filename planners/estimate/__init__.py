"""A plan as distributions, by Monte Carlo."""
