"""How wide each trial is while a run decides as it goes."""
