"""A run as it is kept: its job, its folder, its report."""
