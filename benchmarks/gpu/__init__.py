"""What 45 minutes on one GPU are to settle, a step at a time, with results that can be compared."""
