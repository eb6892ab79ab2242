"""A run on disk: its job, its folder, its report."""
