"""From an experiment to the plan of its run."""
