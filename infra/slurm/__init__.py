"""A Slurm cluster as a cloud: an instance is a job, which joins the Ray head of its run."""
