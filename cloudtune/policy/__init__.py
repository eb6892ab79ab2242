"""The state machine of a run: an event in, commands out, within deadline and budget."""
