"""Where the configurations of trials come from."""
