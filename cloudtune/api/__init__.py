"""What a script or a notebook asks cloudtune for: plans, and the results of runs."""
