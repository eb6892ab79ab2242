"""How an experiment becomes a plan, a run and a report."""
