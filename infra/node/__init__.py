"""An instance's side: its boot, agent, workers, GPUs, lease and notices."""
