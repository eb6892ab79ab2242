"""The one loop of a run, its record and what that adds up to, and the worlds without a cloud."""
