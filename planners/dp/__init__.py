"""The exact search: Pareto dynamic programming and its bounds."""
