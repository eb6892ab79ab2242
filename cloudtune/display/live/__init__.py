"""What a terminal shows of a run while it goes."""
